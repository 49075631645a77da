"""Our states as Farama's environments: back again they are the same, and both go on alike."""

import copy
import dataclasses
import datetime
import functools
import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import lockstep
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

from jaxagent.envs import babyai, grid, language, minigrid, registry, symbols  # noqa: E402
from jaxagent.envs.grid import GridEnv, GridParams, GridState  # noqa: E402
from jaxagent.envs.instructions import GONE, NOTHING  # noqa: E402
from jaxagent.interop.farama import from_farama, to_farama  # noqa: E402

STEPS = 40
NUM_ROTATING = 2
IDS = sorted({**minigrid.ENVS, **babyai.ENVS})
# whose states have most to say, one each
CHOSEN = [
    "BabyAI-KeyInBox-v0",  # a box that holds something
    "BabyAI-MiniBossLevel-v0",  # four leaves, locked doors, places
    "BabyAI-PickupDistDebug-v0",  # strict; walls match descriptions
    "BabyAI-PutNextS5N2Carrying-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-Fetch-5x5-N2-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
]


def rotating() -> list[str]:
    """Other ids each day, all of them in turn."""
    first = NUM_ROTATING * datetime.date.today().toordinal()
    return [IDS[(first + i) % len(IDS)] for i in range(NUM_ROTATING)]


# equality of states -----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What counts of an object."""

    symbol: int
    position: int
    inside: Any
    members: int
    known: int
    held: bool


# bits of members that are looked for where the verifier last saw them, by verb
LOOKED_FOR = {
    language.GO_TO: 1,
    language.OPEN: 1,
    language.PUT_NEXT: 2,
    language.STOP_NEXT_TO: 1,
    language.PUT_NEAR: 2,
    language.OPEN_RED_THEN_BLUE: 3,
    language.FIND_MATCH: 3,
}
KNOW_HANDS = (language.PICK_UP, language.PUT_NEXT)


def contents(env: GridEnv, state: GridState) -> dict[str, Any]:
    """All of a state that ever matters, the rows of objects in one order."""
    mission = language.unflatten(env.level.mission) if env.level.mission else state.mission
    fields = {
        name: np.asarray(getattr(state, name)).tolist() for name in ("cells", "position", "direction", "carrying", "step_count")
    }
    fields["mission"] = language.flatten(mission).tolist()
    fields["max_steps"] = None if state.max_steps is None else int(state.max_steps)
    if state.objects is None:
        return fields
    verbs = np.asarray(mission.leaves)[:, language.VERB].tolist()
    looked_for = sum(LOOKED_FOR.get(verb, 0) << 2 * i for i, verb in enumerate(verbs))
    rows = [row(state, i, looked_for) for i in range(state.objects.symbol.size)]
    fields["rows"] = sorted(repr(r) for r in rows if r.position != GONE or r.members)
    fields["held"] = int(state.objects.held) != NOTHING
    if state.task is not None:
        task = state.task
        know_hands = sum((verb in KNOW_HANDS) << i for i, verb in enumerate(verbs)) if state.carrying else 0
        fields["verified"] = int(task.verified) & know_hands & ~int(task.done)
        fields["task"] = [int(task.strict), int(task.done), int(task.matched)]
    return fields


def row(state: GridState, i: int, looked_for: int) -> Row:
    objects, task = state.objects, state.task
    position, symbol = int(objects.position[i]), int(objects.symbol[i])
    if symbols.kind_of(symbol) in (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED):
        symbol = symbols.symbol(symbols.DOOR_OPEN, symbols.colour_of(symbol))  # its state is in the cells
    members, known = (0, GONE) if task is None else (int(task.members[i]), int(task.known[i]))
    known = max(known, GONE + 1) if members & looked_for else GONE
    inside = NOTHING if objects.contents is None or position == GONE else int(objects.contents[i])
    nested = None if inside == NOTHING else row(state, inside, looked_for)._replace(position=GONE)
    return Row(symbol, position, nested, members, known, int(objects.held) == i)


def assert_same_state(source: Any, env: GridEnv, params: GridParams, state: GridState) -> None:
    back, back_params, again = from_farama(source, env.obs, env.mission_obs)
    assert back == env and back_params == params
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert contents(back, again) == contents(env, state)


# going on ---------------------------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A step of Farama's."""

    generator: np.random.Generator  # before it
    action: int
    obstacles: list[int]  # flat cells where they went
    step: tuple[Any, ...]


def play(env: GridEnv, source: Any, stream: lockstep.Stream) -> list[Moment]:
    moments = []
    for _ in range(STEPS):
        generator, action = copy.deepcopy(source.np_random), stream()
        step = source.step(action)
        obstacles = [env.frame.index(*map(int, obstacle.cur_pos)) for obstacle in getattr(source, "obstacles", ())]
        moments.append(Moment(generator, action, obstacles, step))
        if step[2] or step[3]:
            break
    return moments


@functools.partial(jax.jit, static_argnums=0)
def trace(env: GridEnv, params: GridParams, state: GridState, actions: jax.Array, obstacles: jax.Array) -> Any:
    """Ours through the same actions: states, and what is seen, paid and said, `[T, ...]`."""

    def step(state: GridState, given: tuple[jax.Array, jax.Array]) -> Any:
        action, there = given
        seen, state, reward, terminated, truncated, _ = env.step(there, state, action, params)
        return state, (state, (seen, reward, terminated, truncated))

    with mock.patch.object(grid, "wander", lockstep._led):  # obstacles go where Farama's went
        return jax.lax.scan(step, state, (actions, obstacles))[1]


def assert_same_step(ours: Any, theirs: tuple[Any, ...]) -> None:
    (seen, reward, terminated, truncated), (shown, paid, *flags, _) = ours, theirs
    np.testing.assert_array_equal(seen["image"], shown["image"])
    assert seen["direction"] == shown["direction"]
    assert reward == pytest.approx(paid, abs=1e-6)
    assert [terminated, truncated] == flags


@pytest.mark.parametrize("name", [*CHOSEN, *(f"{i}th of today" for i in range(NUM_ROTATING))])
def test_states_go_on_as_in_farama(name: str) -> None:
    name = rotating()[int(name[0])] if name.endswith("today") else name
    env, params = registry.make(name, obs="symbolic")
    assert isinstance(env, GridEnv)
    rng = np.random.default_rng(datetime.date.today().toordinal())
    _, state = jax.jit(env.reset)(jax.random.key(int(rng.integers(1 << 30))), params)
    source = to_farama(env, params, state, seed=0)
    assert_same_state(source, env, params, state)

    moments = play(env, source, lockstep.adversarial_stream(source, rng))
    actions, obstacles = (jnp.asarray(column, jnp.int32) for column in list(zip(*moments, strict=True))[1:3])
    states, shown = jax.device_get(trace(env, params, state, actions, obstacles))
    for t, moment in enumerate(moments):
        assert_same_step(jax.tree.map(lambda leaf, t=t: leaf[t], shown), moment.step)
        assert moment.step[0]["mission"] == env.mission(state)

    for t in range(0, len(moments) - 1, 6):
        under_way = jax.tree.map(lambda leaf, t=t: leaf[t], states)
        source = to_farama(env, params, under_way)
        assert_same_state(source, env, params, under_way)
        source.np_random = moments[t + 1].generator
        for _, action, _, expected in moments[t + 1 : t + 12]:
            seen, *rest = source.step(action)
            np.testing.assert_array_equal(seen.pop("image"), expected[0]["image"])
            assert (seen, rest) == ({key: expected[0][key] for key in seen}, list(expected[1:]))


@pytest.mark.parametrize("name", ["BabyAI-GoToObj-v0", "MiniGrid-LockedRoom-v0"])
def test_farama_resets_it(name: str) -> None:
    env, params = registry.make(name)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    source, other = to_farama(env, params, state), gymnasium.make(name).unwrapped
    for ours, theirs in zip(source.reset(seed=3)[0].values(), other.reset(seed=3)[0].values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert source.max_steps == other.max_steps


# what is no level of Farama's -------------------------------------------------------------------------------------------------


def first(name: str, **options: Any) -> tuple[GridEnv, GridParams, GridState]:
    env, params = registry.make(name, **options)
    assert isinstance(env, GridEnv)
    return env, params, jax.jit(env.reset)(jax.random.key(0), params)[1]


def test_mended_levels_hold_their_object_from_the_start() -> None:
    env, params, state = first("BabyAI-PutNextS5N2Carrying-v0", obs="symbolic", fixed=True)
    source = to_farama(env, params, state)
    assert source.carrying is not None and source.step_count == 0
    np.testing.assert_array_equal(source.gen_obs()["image"], env.observe(state)["image"])
    assert contents(env, from_farama(source)[2]) == contents(env, state)


def test_done_actions_are_farama_s_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from minigrid.envs.babyai.core import verifier

    env, params, state = first("BabyAI-GoToObj-v0", obs="symbolic", done_action=True)
    with pytest.raises(ValueError, match="done_action: expected False, .* got True"):
        to_farama(env, params, state)
    monkeypatch.setattr(verifier, "use_done_actions", True)
    state = dataclasses.replace(state, task=state.task.replace(matched=jnp.uint8(1)))
    source = to_farama(env, params, state)
    assert_same_state(source, env, params, state)
    _, reward, terminated, *_ = source.step(6)
    assert terminated and reward > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Collector-v0", {}, "registers, got Collector-v0"),
        ("BabyAI-Mix", {"levels": ["BabyAI-GoToObj-v0", "BabyAI-GoToDoor-v0"]}, "registers, got BabyAI-Mix"),
        ("BabyAI-SynthS5R2-v0", {"fixed": True}, "Farama's 13 x 9 cells, got 9 x 9"),
    ],
)
def test_other_environments_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    env, params = registry.make(name, **options)
    with pytest.raises(ValueError, match=message):
        to_farama(env, params, None)


def test_one_state_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    env, params, state = first("MiniGrid-Empty-5x5-v0")
    with pytest.raises(ValueError, match=r"state: expected one, with cells \[193\], got cells \[3, 193\]"):
        to_farama(env, params, jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state))
    with pytest.raises(ValueError, match="state: expected a GridState, got dict"):
        to_farama(env, params, env.observe(state))
    with pytest.raises(ValueError, match="env: expected a level of MiniGrid or BabyAI that Farama registers, got GridState"):
        to_farama(state, params, state)
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ImportError, match=r"pip install jaxagent\[farama\]"):
        to_farama(env, params, state)
