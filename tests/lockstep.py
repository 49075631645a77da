"""Farama's environments and ours, stepped side by side through the same actions.

Farama steps first, because streams of actions may look at what it has; ours then replays the recorded actions, all episodes of
a level in one compiled call. Letters: `N` episodes, `T` steps.
"""

import contextlib
import datetime
import functools
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import planning
from scipy.stats import chi2_contingency

from jaxagent.envs import grid
from jaxagent.interop.farama import from_farama

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
HORIZON = 256  # actions that the expert plans at most


class Steps(NamedTuple):
    """What each step of an episode showed, `[T, ...]`."""

    image: np.ndarray  # uint8 [T, 7, 7, 3]
    direction: np.ndarray  # int
    mission: np.ndarray  # bool, whether it is still that of the first observation
    reward: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool


class Episode(NamedTuple):
    """An episode of Farama's, and ours at its start."""

    env: grid.GridEnv
    params: grid.GridParams
    state: grid.GridState
    actions: np.ndarray  # int32 [T]
    obstacles: np.ndarray  # int32 [T, n], flat cells where they went at each step
    steps: Steps


# streams of actions -----------------------------------------------------------------------------------------------------------

Stream = Callable[[], int | None]  # the next action, None after the last


def random_stream(source: Any, rng: np.random.Generator) -> Stream:
    return lambda: int(rng.integers(source.action_space.n))


def adversarial_stream(source: Any, rng: np.random.Generator, *, complete: bool = False) -> Stream:
    """Handles whatever it meets: takes, drops, opens and closes at every chance, walks into walls, and says that it is done.

    Unless it must be `complete`, it sometimes does without actions that in some levels soon end an episode.
    """
    without = () if complete else [(), (), (TOGGLE, DONE), (PICKUP,)][rng.integers(4)]
    shy = hasattr(source, "obstacles")

    def act() -> int:
        cell = source.grid.get(*source.front_pos)
        chances = np.array([0.12, 0.12, 0.4, 0.02, 0.02, 0.01, 0.01])
        if cell is None:
            chances[[FORWARD, DROP]] += 0.2, 0.5 if source.carrying else 0
        elif cell.type in ("key", "ball", "box"):
            chances[[PICKUP, DROP, TOGGLE]] += 0.8, 0.1, 0.15 if cell.type == "box" else 0.02
        elif cell.type == "door":
            chances[[PICKUP, TOGGLE]] += 0.05, 0.2 if cell.is_open else 1.0
        else:
            chances[[PICKUP, DROP, TOGGLE]] += 0.05
        if shy and cell is not None:
            chances[FORWARD] = 0.01
        chances[list(without)] = 0
        chances = chances[: source.action_space.n]
        return int(rng.choice(chances.size, p=chances / chances.sum()))

    return act


def expert_streams(sources: list[Any], rngs: list[np.random.Generator]) -> list[Stream]:
    """What our expert does from where these environments of one level are, planned ahead.

    It cannot know where obstacles will move, and is asked at each step; where there is nothing to succeed at, something is done
    all the same.
    """
    level = from_farama(sources[0])[0].level
    if not level.can_succeed:
        return [adversarial_stream(*each, complete=True) for each in zip(sources, rngs, strict=True)]
    if level.obstacles:
        return [functools.partial(_advice, source) for source in sources]
    return [script(actions) for actions in _plans(sources, HORIZON).actions.tolist()]


def _advice(source: Any) -> int:
    return int(_plans([source], 1).actions[0, 0])


def _plans(sources: list[Any], num_steps: int) -> planning.Plans:
    envs, _, states = zip(*map(from_farama, sources), strict=True)
    return planning.plans(envs[0], planning.stacked(states), num_steps)


Streams = Callable[[list[Any], list[np.random.Generator]], list[Stream]]  # of environments of one level


def _one_by_one(make: Callable[[Any, np.random.Generator], Stream]) -> Streams:
    return lambda sources, rngs: [make(*each) for each in zip(sources, rngs, strict=True)]


STREAMS: dict[str, Streams] = {
    "random": _one_by_one(random_stream),
    "expert": expert_streams,
    "adversarial": _one_by_one(adversarial_stream),
}


def script(actions: Iterable[int]) -> Stream:
    """A stream of given actions."""
    return functools.partial(next, iter(actions), None)


# the two sides ----------------------------------------------------------------------------------------------------------------


def record(source: Any, stream: Stream, num_steps: int, *, past_end: bool = False) -> Episode:
    """Converts `source` and steps it, until the stream is at its end or, unless `past_end`, the episode."""
    env, params, state = from_farama(source)
    mission, rows, actions, obstacles = source.mission, [], [], []
    moving = getattr(source, "obstacles", ())
    for action in itertools.islice(iter(stream, None), num_steps):
        actions.append(action)
        seen, reward, terminated, truncated, _ = source.step(action)
        rows.append((seen["image"], seen["direction"], seen["mission"] == mission, np.float32(reward), terminated, truncated))
        obstacles.append([env.frame.index(*map(int, obstacle.cur_pos)) for obstacle in moving])
        if (terminated or truncated) and not past_end:
            break
    steps = Steps(*map(np.array, zip(*rows, strict=True)))
    return Episode(env, params, state, np.array(actions, np.int32), np.array(obstacles, np.int32), steps)


def replay(episodes: list[Episode], num_steps: int) -> list[Steps]:
    """What our environment shows in the same episodes, `[num_steps, ...]` each, those of equal shape in one call."""
    groups: dict[Any, list[int]] = {}
    for i, episode in enumerate(episodes):
        shapes = jax.tree.map(np.shape, (episode.state, episode.params))
        groups.setdefault((anonymous(episode.env), str(shapes)), []).append(i)
    shown: dict[int, Steps] = {}
    for (env, _), members in groups.items():
        chosen = [episodes[i] for i in members]
        steps = [_padded(array, num_steps) for episode in chosen for array in (episode.actions, episode.obstacles)]
        starts = [(episode.params, episode.state) for episode in chosen]
        (params, states), actions, obstacles = (
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *column) for column in (starts, steps[::2], steps[1::2])
        )
        columns = jax.device_get(_replay(env, params, states, actions, obstacles))
        shown |= {i: Steps(*(column[row] for column in columns)) for row, i in enumerate(members)}
    return [shown[i] for i in range(len(episodes))]


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    """`[T, ...]` to `[size, ...]`, by repeating the last."""
    return np.pad(array, [(0, size - len(array)), *((0, 0),) * (array.ndim - 1)], mode="edge")


@functools.partial(jax.jit, static_argnums=0)
def _replay(env: grid.GridEnv, params: Any, states: Any, actions: jax.Array, obstacles: jax.Array) -> tuple[jax.Array, ...]:
    def episode(params: Any, state: Any, actions: jax.Array, obstacles: jax.Array) -> tuple[jax.Array, ...]:
        first = env.observe(state)["mission"]

        def step(state: Any, given: tuple[jax.Array, jax.Array]) -> tuple[Any, tuple[jax.Array, ...]]:
            action, there = given
            # the key says where the obstacles went: they move by a generator of NumPy's
            seen, state, reward, terminated, truncated, _ = env.step(there, state, action, params)
            same = jnp.array_equal(seen["mission"], first)
            return state, (seen["image"], seen["direction"], same, reward, terminated, truncated)

        return jax.lax.scan(step, state, (actions, obstacles))[1]

    with mock.patch.object(grid, "wander", _led):
        return jax.vmap(episode)(params, states, actions, obstacles)


def _led(frame: grid.Frame, there: jax.Array, state: grid.GridState, num: int) -> grid.GridState:
    """In the place of `grid.wander`: obstacles go where they are told."""
    for row in range(num):
        state = grid.move(state, row, there[row])
    return state


def anonymous(env: grid.GridEnv) -> grid.GridEnv:
    """The same rules without what only `reset` needs, so that levels that differ in nothing else share a compiled program."""
    level = env.level
    level = grid.Level(
        **{**vars(level), "generate": planning.no_generator, "max_steps": 10**6, "rejects": False, "variants": 1}
    )
    return grid.GridEnv("anonymous", level, env.obs, env.mission_obs)


def scatter(source: Any, rng: np.random.Generator) -> None:
    """Moves the agent anywhere in the level, past its doors as well, unless they lead out of it."""
    inside = _around(source, ("wall",))
    if any(x in (0, source.width - 1) or y in (0, source.height - 1) for x, y in inside):
        inside = _around(source, ("wall", "door"))
    free = [xy for xy in sorted(inside) if source.grid.get(*xy) is None]
    source.agent_pos, source.agent_dir = free[rng.integers(len(free))], int(rng.integers(4))


def _around(source: Any, stops: tuple[str, ...]) -> set[tuple[int, int]]:
    """Cells that a way from the agent's leads to, past everything but `stops`."""
    reached, new = set(), [tuple(map(int, source.agent_pos))]
    while new:
        x, y = xy = new.pop()
        if xy in reached or not (0 <= x < source.width and 0 <= y < source.height):
            continue
        cell = source.grid.get(x, y)
        if cell is not None and cell.type in stops:
            continue
        reached.add(xy)
        new += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    return reached


# comparison -------------------------------------------------------------------------------------------------------------------


def mismatches(episode: Episode, ours: Steps) -> list[str]:
    """What differs, each with the first step where it does; `ours` may be longer."""
    found = []
    for name, their, our in zip(Steps._fields, episode.steps, ours, strict=True):
        our = our[: len(their)]
        differs = np.abs(our - their) > 1e-6 if name == "reward" else our != their
        steps = np.flatnonzero(differs.reshape(len(their), -1).any(axis=1))
        if steps.size:
            found.append(f"{name} at step {steps[0]}: ours {our[steps[0]].tolist()}, Farama's {their[steps[0]].tolist()}")
    return found


def made(name: str, **options: Any) -> Any:
    """Farama's environment of a registered id, those of which there is a newer version included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return gymnasium.make(name, **options).unwrapped


def reset(source: Any, seed: int) -> dict[str, Any]:
    """The first observation. Some levels print how often they drew anew."""
    with contextlib.redirect_stdout(io.StringIO()):
        return source.reset(seed=seed)[0]


def first_mismatches(source: Any, seen: dict[str, Any]) -> list[str]:
    """What our first observation shows differently from Farama's."""
    env, _, state = from_farama(source)
    ours = env.observe(state) | {"mission": env.mission(state)}
    return [f"{name} at reset" for name in seen if not np.array_equal(ours[name], seen[name])]


def run(source: Any, stream: Stream, num_steps: int, *, past_end: bool = False) -> Episode:
    """One episode; asserts that nothing differs. `source` is left at its end."""
    episode = record(source, stream, num_steps, past_end=past_end)
    (ours,) = replay([episode], num_steps)
    assert not (found := mismatches(episode, ours)), "\n".join([f"actions {episode.actions.tolist()}", *found])
    return episode


def obstacle_moves(source: Any, count: int) -> float:
    """The p-value of a chi-squared test that Farama's obstacles and ours are in the same places after a step from this state,
    of which either side takes `count`."""
    env, _, state = from_farama(source)
    keys = jax.random.split(jax.random.key(0), count)
    ours = jax.jit(jax.vmap(lambda key: grid.wander(env.frame, key, state, env.level.obstacles).objects.position))(keys)
    theirs, start = [], [obstacle.cur_pos for obstacle in source.obstacles]
    for _ in range(count):
        source.step(LEFT)
        theirs.append([int(env.frame.index(*map(int, obstacle.cur_pos))) for obstacle in source.obstacles])
        for obstacle in source.obstacles:
            source.grid.set(*obstacle.cur_pos, None)
        for obstacle, xy in zip(source.obstacles, start, strict=True):
            source.put_obj(obstacle, *xy)
    # of the first two together, so that one keeping out of the other's way is seen
    pairs = np.concatenate([np.asarray(ours), np.array(theirs)])[:, :2]
    outcomes = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(2, count)
    table = np.array([np.bincount(side, minlength=outcomes.max() + 1) for side in outcomes])
    rare = table.sum(axis=0) < 10
    pooled = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    return float(chi2_contingency(pooled[:, pooled.sum(axis=0) > 0]).pvalue)


def rotating(names: Iterable[str], count: int) -> list[tuple[str, int]]:
    """Another sample of levels and seeds each day, or the one of the environment variable CONFORMANCE_DAY."""
    day = int(os.environ.get("CONFORMANCE_DAY", datetime.date.today().toordinal()))
    rng = np.random.default_rng(day)
    return [(name, day + i) for i, name in enumerate(rng.choice(sorted(names), count, replace=False).tolist())]
