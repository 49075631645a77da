"""Compares the levels that jaxagent generates with those of Farama's `minigrid`, in distribution.

    python benchmarks/generators.py [ID ...] [--resets 2000] [--seed 0] [--name generators]

Each id is reset as often on both sides, and what the levels are like is compared by permutation tests: how many things there
are of each kind and colour and where they are, the state of the doors, the agent's pose, the mission, how far the agent has to
walk (see `statistics`), and in how many actions our expert solves the level. These are not always the fewest, but counted by
the same program on both sides; of the first 500 levels a side only, because it takes long to convert Farama's. Over all tests
of all ids, p-values are corrected by Holm's method; failures are named. Writes `benchmarks/results/NAME.json`.

Letters: `M` levels of both sides together, `W`, `H` size of the world, `D` columns of a statistic.
"""

import argparse
import collections
import contextlib
import io
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import minigrid  # noqa: F401  registers its environments
import numpy as np
from learning import machine

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import planning  # noqa: E402

from jaxagent.envs import babyai, grid, registry, room_levels, rooms, symbols  # noqa: E402
from jaxagent.files import write_json  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402

LEVEL = 0.05  # chance that anything at all is called a failure where all distributions are the same
PERMUTATIONS = 999  # of every test; those that they do not settle get as many again and again
TESTS_PER_ID = 14
MOST_CATEGORIES = 16
SOLVED = 500  # levels a side that the expert solves
HORIZON = 256  # actions that it may take
PATIENCE = 20  # seconds for one reset of a Farama environment
ROOM_LEVELS = babyai.ENVS | room_levels.minigrid()

DOORS = (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED)
KINDS = {
    "wall": (symbols.WALL,),
    "door": DOORS,
    "key": (symbols.KEY,),
    "ball": (symbols.BALL,),
    "box": (symbols.BOX,),
    "goal": (symbols.GOAL,),
    "lava": (symbols.LAVA,),
}
SOLID = (symbols.WALL, symbols.KEY, symbols.BALL, symbols.BOX)
FAR = 10**4  # steps to what cannot be reached, actions to solve what the expert cannot
UNKNOWN = -1


# levels -----------------------------------------------------------------------------------------------------------------------


class Levels(NamedTuple):
    """Levels of one id as they are after a reset."""

    cells: np.ndarray  # uint8 [M, W, H], symbols
    agent: np.ndarray  # int [M, 2], (x, y)
    direction: np.ndarray  # int [M]
    carrying: np.ndarray  # uint8 [M], a symbol, or 0
    inside: np.ndarray  # int [M, 256], how many boxes hold a thing of each symbol
    max_steps: np.ndarray  # int [M]
    solution: np.ndarray  # int [M], actions of the expert, or UNKNOWN
    missions: list[str]


def ours(name: str, resets: int, seed: int) -> Levels:
    env, params = registry.make(name)
    keys = jax.random.split(jax.random.key(seed), resets)
    return _levels(env, jax.jit(jax.vmap(lambda key: _taken_up(env, env.reset(key, params)[1])))(keys))


def ours_of_rooms(names: list[str], resets: int, seed: int) -> Iterator[Levels]:
    """Levels of rooms of one id after the other, all by one compiled program."""
    chosen = [ROOM_LEVELS[name] for name in names]
    env = grid.GridEnv("together", rooms.level(*chosen))

    @jax.jit
    def draw(key: jax.Array, variant: jax.Array) -> tuple[grid.GridState, jax.Array]:
        def one(key: jax.Array) -> tuple[grid.GridState, jax.Array]:
            layout = env.level.generate(key, *env.level.size, variant)
            return _taken_up(env, env.frame.state(layout)), jnp.asarray(layout.accepted)

        return jax.vmap(one)(jax.random.split(key, resets))

    for variant, level in enumerate(chosen):
        kept, number = [], 0
        while number < resets:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), variant), len(kept))
            state, accepted = jax.device_get(draw(key, jnp.int32(variant)))
            kept.append(jax.tree.map(lambda leaf, accepted=accepted: leaf[accepted], state))
            number += np.sum(accepted)
        state = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:resets], *kept)
        found, (width, height) = _levels(env, state), level.size
        yield found._replace(cells=found.cells[:, :width, :height])


def _taken_up(env: grid.GridEnv, state: grid.GridState) -> grid.GridState:
    """With what the original takes into the agent's hands right after its first observation."""
    return grid.take_up(state) if env.level.starts_holding else state


def _levels(env: grid.GridEnv, state: grid.GridState) -> Levels:
    """Of states, leaves `[N, ...]`."""
    cells, (agent, direction) = jax.vmap(env.cells)(state), jax.vmap(env.agent)(state)
    state, cells, agent, direction = jax.device_get((state, cells, agent, direction))
    inside = np.zeros((len(cells), 256), int)
    if state.objects is not None and state.objects.contents is not None:
        level, boxes = np.nonzero((state.objects.contents >= 0) & (state.objects.position >= 0))
        np.add.at(inside, (level, state.objects.symbol[level, state.objects.contents[level, boxes]]), 1)
    return Levels(
        cells=cells,
        agent=agent,
        direction=direction,
        carrying=state.carrying,
        inside=inside,
        max_steps=np.full(len(cells), env.level.max_steps) if state.max_steps is None else state.max_steps,
        solution=_solution(env, state),
        missions=[env.mission(jax.tree.map(lambda leaf, i=i: leaf[i], state)) for i in range(len(cells))],
    )


def _solution(env: grid.GridEnv, state: grid.GridState) -> np.ndarray:
    """Actions that our expert needs for the first levels, int `[N]`, of states, leaves `[N, ...]`."""
    solution = np.full(len(state.position), UNKNOWN)
    found = planning.plans(env, jax.tree.map(lambda leaf: leaf[:SOLVED], state), HORIZON)
    solution[:SOLVED] = np.where(found.success, found.lengths, FAR)
    return solution


def theirs(name: str, resets: int, seed: int) -> Levels:
    source: Any = gymnasium.make(gymnasium.registry[name]).unwrapped
    levels, starts = [], []
    for i in range(resets):
        _reset(source, seed if i == 0 else None)
        inside = np.zeros(256, int)
        for cell in source.grid.grid:
            if cell is not None and cell.type == "box" and cell.contains is not None:
                inside[_symbol(cell.contains.encode())] += 1
        carrying = 0 if source.carrying is None else _symbol(source.carrying.encode())
        cells = _symbol(np.moveaxis(source.grid.encode(), -1, 0))
        agent = np.array(source.agent_pos)
        if i < SOLVED:
            env, _, state = from_farama(source)
            starts.append(state)
        levels.append((cells, agent, source.agent_dir, carrying, inside, source.max_steps, source.mission))
    *arrays, missions = zip(*levels, strict=True)
    solution = np.full(resets, UNKNOWN)
    solution[:SOLVED] = _solution(env, planning.stacked(starts))
    return Levels(*map(np.array, arrays), solution, list(missions))


class _Hangs(BaseException):
    """No `Exception`, which the environment might catch."""


def _reset(source: Any, seed: int | None) -> None:
    """Resets a Farama environment, again where it hangs: some of SynthS5R2's levels have no place for the agent."""

    def give_up(*_: Any) -> None:
        raise _Hangs

    signal.signal(signal.SIGALRM, give_up)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints each rejection
        while True:
            signal.alarm(PATIENCE)
            with contextlib.suppress(_Hangs):
                source.reset(seed=seed)
                break
            seed = None
    signal.alarm(0)


def _symbol(encoded: Any) -> np.ndarray:
    """Symbols of MiniGrid's kind, colour and state."""
    kind, colour, state = np.asarray(encoded)
    return symbols.symbol(np.where(kind == symbols.DOOR_OPEN, np.array(DOORS)[state], kind), colour).astype(np.uint8)


def joined(first: Levels, second: Levels) -> Levels:
    return Levels(
        *(np.concatenate(pair) for pair in zip(first[:-1], second[:-1], strict=True)), first.missions + second.missions
    )


# statistics -------------------------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Numbers that describe each level; the question is whether their means are the same on both sides."""

    values: np.ndarray  # [M, D]
    labels: list[str]


def statistics(levels: Levels) -> dict[str, list[Columns]]:
    """What is compared, in groups. A group is tested as a whole."""
    kinds, colours = levels.cells >> 3, levels.cells & 7
    masks = {name: np.isin(kinds, members) for name, members in KINDS.items()}
    every = np.arange(len(kinds))
    standing = np.zeros(kinds.shape, bool)
    standing[every, levels.agent[:, 0], levels.agent[:, 1]] = True
    ahead = levels.agent + symbols.DIRECTION_XY[levels.direction]
    steps = distances(standing, ~np.isin(kinds, SOLID))
    reached = {
        "in the same room": distances(standing, ~np.isin(kinds, (*SOLID, *DOORS[1:]))),
        "behind no locked door": distances(standing, ~np.isin(kinds, (*SOLID, *DOORS[2:]))),
        "anywhere": steps,
    }
    named = [_named(levels, i, masks) for i in range(4)]
    return {
        "numbers": [
            *(_categories(f"{name}s", _count(mask)) for name, mask in masks.items()),
            _categories("unlike things", _unlike(levels.cells)),
            _categories("keys that fit a locked door", _fitting(levels)),
            *(
                _categories(f"doors {state}", _count(kinds == kind))
                for state, kind in zip(("open", "closed", "locked"), DOORS, strict=True)
            ),
            Columns(levels.inside, [f"symbol {symbol} inside a box" for symbol in range(256)]),
            _categories("step limit", levels.max_steps),
        ],
        "colours": [
            Columns(_count(mask & (colours == colour))[:, None], [f"{symbols.COLOUR_NAMES[colour]} {name}s"])
            for name, mask in masks.items()
            for colour in range(6)
        ],
        "places": [_cells(name, mask) for name, mask in masks.items()],
        "agent": [
            _cells("agent", standing),
            _categories("direction", levels.direction),
            _categories("kind ahead", kinds[every, ahead[:, 0], ahead[:, 1]]),
            _categories("carrying", levels.carrying),
        ],
        "mission": _of_mission(levels.missions),
        "paths": [
            *(_categories(f"cells {name}", _count(cells < FAR)) for name, cells in reached.items()),
            *(_categories(f"steps to a {name}", _nearest(steps, mask)) for name, mask in masks.items() if name != "wall"),
            *(_categories(f"steps to description {i + 1}", _nearest(steps, mask)) for i, mask in enumerate(named)),
            *(_categories(f"objects of description {i + 1}", _count(mask)) for i, mask in enumerate(named)),
        ],
    }


def _categories(name: str, values: np.ndarray) -> Columns:
    """A column for each value; where there are many, neighbours share one."""
    known, index = np.unique(values, return_inverse=True)
    if known.size > MOST_CATEGORIES:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, MOST_CATEGORIES + 1)[1:-1]))
        known, index = np.append(edges, np.inf), np.digitize(values, edges)
        return Columns(index[:, None] == np.arange(known.size), [f"{name} below {edge:g}" for edge in known])
    return Columns(index[:, None] == np.arange(known.size), [f"{name}: {value}" for value in known])


def _cells(name: str, mask: np.ndarray) -> Columns:
    """The cells of a mask, bool `[M, W, H]`."""
    _, width, height = mask.shape
    return Columns(mask.reshape(len(mask), -1), [f"{name} at ({x}, {y})" for x in range(width) for y in range(height)])


def _count(mask: np.ndarray) -> np.ndarray:
    return mask.sum(axis=(1, 2))


def _unlike(cells: np.ndarray) -> np.ndarray:
    """How many different things there are."""
    things = [symbols.symbol(kind, colour) for kind in (symbols.KEY, symbols.BALL, symbols.BOX) for colour in range(6)]
    return np.sum([np.any(cells == thing, axis=(1, 2)) for thing in things], axis=0)


def _fitting(levels: Levels) -> np.ndarray:
    """How many keys, in boxes or not, have the colour of a locked door."""
    total = np.zeros(len(levels.cells), int)
    for colour in range(6):
        key = symbols.symbol(symbols.KEY, colour)
        keys = _count(levels.cells == key) + levels.inside[:, key]
        total += keys * np.any(levels.cells == symbols.symbol(symbols.DOOR_LOCKED, colour), axis=(1, 2))
    return total


_DESCRIPTION = re.compile(rf"\b(?:({'|'.join(symbols.COLOUR_NAMES)}) )?(box|ball|key|door|object)\b")


def _of_mission(missions: list[str]) -> list[Columns]:
    """The most frequent forms of the sentence, and how often each word comes."""
    forms = [_DESCRIPTION.sub("SOMETHING", mission) for mission in missions]
    frequent = [form for form, _ in collections.Counter(forms).most_common(MOST_CATEGORIES)]
    words = sorted({word for mission in missions for word in mission.split()})
    counts = np.array([[mission.split().count(word) for word in words] for mission in missions])
    return [Columns(np.array(forms)[:, None] == np.array(frequent), frequent), Columns(counts, words)]


def _named(levels: Levels, i: int, masks: dict[str, np.ndarray]) -> np.ndarray:
    """Where the objects of the mission's description number `i` are, whatever it says of their place: bool `[M, W, H]`."""
    named = np.zeros(levels.cells.shape, bool)
    for level, mission in enumerate(levels.missions):
        found = _DESCRIPTION.findall(mission)
        if i < len(found):
            colour, kind = found[i]
            members = [kind] if kind in masks else ["box", "ball", "key"]
            named[level] = np.any([masks[member][level] for member in members], axis=0)
            if colour:
                named[level] &= levels.cells[level] & 7 == symbols.COLOUR_NAMES.index(colour)
    return named


def distances(start: np.ndarray, passable: np.ndarray) -> np.ndarray:
    """Steps from `start` to every cell over passable ones, which the last need not be: int `[M, W, H]`, FAR for no way."""
    steps = np.where(start, 0, FAR).astype(np.int16)
    frontier, step = start, 0
    while frontier.any():
        step += 1
        grown = np.zeros_like(frontier)
        grown[:, 1:] |= frontier[:, :-1]
        grown[:, :-1] |= frontier[:, 1:]
        grown[:, :, 1:] |= frontier[:, :, :-1]
        grown[:, :, :-1] |= frontier[:, :, 1:]
        grown &= steps == FAR
        steps[grown] = step
        frontier = grown & passable
    return steps


def _nearest(steps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, steps, FAR).min(axis=(1, 2))


# tests ------------------------------------------------------------------------------------------------------------------------


class Test(NamedTuple):
    """The outcome of one test, and the column that differs most with its means."""

    name: str
    p: float
    column: str
    ours: float
    theirs: float


def compare(first: Levels, second: Levels, *, resolution: float) -> list[Test]:
    """Two permutation tests a group: of the sum over all columns, and of the largest column.

    A column counts as its squared difference of means over its variance, on both sides together.

    Args:
      first, second: levels of one id.
      resolution: how small a p-value may be found to be.
    """
    both = joined(first, second)
    of_ours = np.repeat([True, False], [len(first.missions), len(second.missions)])
    solved = both.solution != UNKNOWN
    solution = {"solution": [_categories("actions of the expert", both.solution[solved])]}
    return [*_tests(statistics(both), of_ours, resolution), *_tests(solution, of_ours[solved], resolution)]


def _tests(groups: dict[str, list[Columns]], of_ours: np.ndarray, resolution: float) -> list[Test]:
    """Args: what is compared, `[M, D]`, and which side each level is of, bool `[M]`."""
    weights = np.where(of_ours, 1 / np.sum(of_ours), -1 / np.sum(~of_ours)).astype(np.float32)
    permuted = np.random.default_rng(0).permuted(np.broadcast_to(weights, (PERMUTATIONS, weights.size)), axis=1)
    tests = []
    for group, parts in groups.items():
        values = np.concatenate([part.values for part in parts], axis=1).astype(np.float32)
        varying = values.std(axis=0) > 0
        if not varying.any():
            continue
        values, labels = values[:, varying], np.concatenate([part.labels for part in parts])[varying]
        scaled = (values - values.mean(axis=0)) / values.std(axis=0)
        worst = np.argmax((weights @ scaled) ** 2)
        means = [float(values[side, worst].mean()) for side in (of_ours, ~of_ours)]
        for name, total in ((group, np.sum), (f"{group}, one by one", np.max)):
            p = _p_value(scaled, weights, permuted, total, resolution)
            tests.append(Test(name, p, str(labels[worst]), *means))
    return tests


def _p_value(
    scaled: np.ndarray, weights: np.ndarray, permuted: np.ndarray, total: Callable[..., np.ndarray], resolution: float
) -> float:
    """How often permuted weights give as much as the true ones, from as many permutations as it takes to know."""
    rng = np.random.default_rng(1)
    threshold = total((weights @ scaled) ** 2) * (1 - 1e-5)
    beyond, tried, order = 0, 0, np.arange(len(scaled))
    while True:
        beyond += np.sum(total((permuted @ scaled[order]) ** 2, axis=1) >= threshold)
        tried += len(permuted)
        p = float((beyond + 1) / (tried + 1))
        if beyond >= 10 or p <= resolution:
            return p
        order = rng.permutation(order)  # the same permutations after another one are new permutations


def rejected(p_values: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Holm's method: which hypotheses fail, bool, with a chance of `level` that any that is true does."""
    order = np.argsort(p_values)
    fails = p_values[order] * np.arange(len(order), 0, -1) <= level
    result = np.zeros(len(order), bool)
    result[order] = np.logical_and.accumulate(fails)
    return result


# program ----------------------------------------------------------------------------------------------------------------------


def farama_ids() -> list[str]:
    return [name for name in registry.names() if name in gymnasium.registry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids", nargs="*", default=farama_ids())
    parser.add_argument("--resets", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--own", action="store_true", help="compare the own program of each level of rooms with that of all of them"
    )
    parser.add_argument("--name", default="generators")
    arguments = parser.parse_args()
    if arguments.own:
        arguments.ids = [name for name in arguments.ids if name in ROOM_LEVELS]
    resolution = LEVEL / (2 * TESTS_PER_ID * len(arguments.ids))
    in_rooms = [name for name in arguments.ids if name in ROOM_LEVELS]
    together = ours_of_rooms(in_rooms, arguments.resets, arguments.seed)
    found: list[tuple[str, Test]] = []
    for name in arguments.ids:
        began = time.perf_counter()
        first = next(together) if name in ROOM_LEVELS else ours(name, arguments.resets, arguments.seed)
        second = (ours if arguments.own else theirs)(name, arguments.resets, arguments.seed + 1)
        tests = compare(first, second, resolution=resolution)
        found += [(name, test) for test in tests]
        least = min(tests, key=lambda test: test.p, default=None)
        print(
            f"{name:42} {time.perf_counter() - began:6.1f} s  least p: {least and f'{least.p:.2g} ({least.name})'}", flush=True
        )
    failed = rejected(np.array([test.p for _, test in found]))
    failures = [{"id": name, **test._asdict()} for (name, test), fails in zip(found, failed, strict=True) if fails]
    result = {
        "machine": machine(),
        "resets": arguments.resets,
        "seed": arguments.seed,
        "level": LEVEL,
        "ids": len(arguments.ids),
        "tests": len(found),
        "failures": failures,
        "p_values": {name: {test.name: test.p for other, test in found if other == name} for name in arguments.ids},
    }
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", result)
    for failure in failures:
        print("FAILED  {id}: {name}, p = {p:.2g}; {column}: ours {ours:.4g}, theirs {theirs:.4g}".format(**failure))
    print(f"{len(arguments.ids)} ids, {len(found)} tests, {len(failures)} failures")


if __name__ == "__main__":
    main()
