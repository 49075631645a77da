"""The expert: its searches against plain ones, and how it fares on levels."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unsolvable import exhausted, out_of_reach

from jaxagent.envs import bitboard, registry, symbols
from jaxagent.envs.instructions import DROP, FORWARD, LEFT, RIGHT
from jaxagent.planners import paths
from jaxagent.planners.expert import expert
from jaxagent.types import PolicyInput

SIDE = 9
Pose = tuple[int, int, int]  # x, y, direction


def _board(cells: set[tuple[int, int]]) -> jax.Array:
    mask = np.zeros((SIDE, SIDE), bool)
    for x, y in cells:
        mask[y, x] = True
    return bitboard.pack(jnp.asarray(mask))


def _cells(board: jax.Array) -> set[tuple[int, int]]:
    return {(int(x), int(y)) for y, x in np.argwhere(np.asarray(bitboard.unpack(board, SIDE)))}


def _poses(poses: set[Pose]) -> paths.Poses:
    return paths.Poses(*(_board({(x, y) for x, y, d in poses if d == direction}) for direction in range(4)))


def _world(rng: np.random.Generator, density: float) -> tuple[list[tuple[int, int]], set[tuple[int, int]]]:
    """Free cells inside outer walls, in a random order, and as a set."""
    free = [(x, y) for x in range(1, SIDE - 1) for y in range(1, SIDE - 1) if rng.random() > density]
    rng.shuffle(free)
    return free, set(free)


def _ahead(x: int, y: int, direction: int) -> tuple[int, int]:
    dx, dy = symbols.DIRECTION_XY[direction]
    return int(x + dx), int(y + dy)


def _moves(pose: Pose, free: set[tuple[int, int]]) -> dict[int, Pose]:
    x, y, direction = pose
    moves = {LEFT: (x, y, (direction - 1) % 4), RIGHT: (x, y, (direction + 1) % 4)}
    if _ahead(*pose) in free:
        moves[FORWARD] = (*_ahead(*pose), direction)
    return moves


def _shortest(free: set[tuple[int, int]], goals: set[Pose], later: set[Pose], drops: set[Pose], start: Pose) -> dict[int, int]:
    """Actions needed after each first action, by a plain search forwards; a drop and the turn after it count as one."""

    def following(node: tuple[Pose, bool]) -> dict[int, tuple[Pose, bool]]:
        pose, empty = node
        moves = _moves(pose, free)
        nodes = {action: (after, empty) for action, after in moves.items()}
        if not empty and pose in drops:
            return nodes | {DROP: (moves[LEFT], True), -DROP: (moves[RIGHT], True)}
        return nodes

    def length(node: tuple[Pose, bool]) -> int:
        queue, distance = deque([node]), {node: 0}
        while queue:
            here = queue.popleft()
            if here[0] in (later if here[1] else goals):
                return distance[here]
            for there in following(here).values():
                if there not in distance:
                    distance[there] = distance[here] + 1
                    queue.append(there)
        return 10**6

    lengths: dict[int, int] = {}
    for action, node in following((start, False)).items():
        lengths[abs(action)] = min(lengths.get(abs(action), 10**6), length(node))
    return lengths


@pytest.mark.fast
def test_first_action_is_that_of_a_shortest_way() -> None:
    rng = np.random.default_rng(0)
    find = jax.jit(lambda *args: paths.first_action(*args[:-1], limit=200, errand=args[-1]))
    found = {True: 0, False: 0}
    for _ in range(60):
        free, cells = _world(rng, 0.3)
        poses = [(x, y, d) for x, y in free for d in range(4)]
        start = poses[rng.integers(len(poses))]
        goals, later, drops = (
            {poses[i] for i in rng.integers(len(poses), size=size)} - {start} for size in (rng.integers(3), 3, rng.integers(6))
        )
        drops |= {start} if rng.random() < 0.2 else set()
        lengths = _shortest(cells, goals, later, drops, start)
        errand = paths.Errand(_poses(later), _poses(drops))
        x, y, direction = start
        ahead = {(*_ahead(*start), direction)}
        action, ok = find(_board(cells), _poses(goals), _poses({start}), _poses(ahead), errand)
        best = min(lengths.values())
        assert bool(ok) == (best < 10**6)
        found[bool(ok)] += 1
        if ok:
            assert lengths[int(action)] == best
            assert lengths.get(FORWARD) != best or int(action) == FORWARD
    assert min(found.values()) > 3


def _fewest(goal: set[tuple[int, int]], free: set[tuple[int, int]], hurdles: set[tuple[int, int]], shore: set) -> int:
    """Hurdles on a way from the goal to a cell of the shore, that cell included, at least."""
    queue, crossed = deque([(cell, 0) for cell in goal]), dict.fromkeys(goal, 0)
    best = 10**6
    while queue:
        (x, y), count = queue.popleft()
        if crossed[x, y] < count:
            continue
        if (x, y) in shore:
            best = min(best, count)
        for direction in range(4):
            there = _ahead(x, y, direction)
            if there in free | hurdles:
                cost = count + (there in hurdles)
                if cost < crossed.get(there, 10**6):
                    crossed[there] = cost
                    (queue.append if there in hurdles else queue.appendleft)((there, cost))
    return best


@pytest.mark.fast
def test_breach_crosses_as_few_hurdles_as_can_be() -> None:
    rng = np.random.default_rng(1)
    find = jax.jit(paths.breach)
    counts = []
    for _ in range(60):
        free, cells = _world(rng, 0.55)
        others = [(x, y) for x in range(1, SIDE - 1) for y in range(1, SIDE - 1) if (x, y) not in cells]
        hurdles = {cell for cell in others if rng.random() < 0.6}
        me, goal = free[0], {free[1]}
        reach = _cells(bitboard.flood(_board({me}), _board(cells)))
        shore = {_ahead(x, y, d) for x, y in reach for d in range(4)}
        if goal & shore:
            continue
        met = _cells(find(_board(goal), _board(set()), _board(cells), (_board(hurdles), _board(set())), _board(shore)))
        best = _fewest(goal, cells, hurdles, shore)
        counts.append(best)
        assert met <= hurdles & shore
        assert bool(met) == (best < 10**6)
        for cell in met:  # with one of them gone, one hurdle less remains
            assert _fewest(goal, cells | {cell}, hurdles - {cell}, {cell}) == best - 1
    assert {1, 2, 10**6} <= set(counts)


@pytest.mark.fast
def test_plays_no_other_games() -> None:
    env, _ = registry.make("Collector-v0")
    with pytest.raises(ValueError, match="env: expected a level of MiniGrid or BabyAI, got Collector-v0"):
        expert(env)
    with pytest.raises(ValueError, match="env: expected a level of MiniGrid or BabyAI, got a tuple"):
        expert(registry.make("BabyAI-GoToLocal-v0"))


@pytest.mark.fast
def test_breach_takes_easy_hurdles_first() -> None:
    corridor = {(x, 1) for x in range(1, 8)}
    easy, hard = {(3, 1), (4, 1)}, {(1, 2)}
    free = corridor - easy | {(1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (7, 2)}
    shore = {(2, 1), (1, 2), (3, 1)}  # around an agent at (1, 1) and (2, 1)
    free -= {(1, 1), (2, 1)}
    met = paths.breach(_board({(6, 1)}), _board(set()), _board(free), (_board(easy), _board(hard)), _board(shore))
    assert _cells(met) == {(3, 1)}


@pytest.mark.fast
def test_harmless_cells_cut_no_passage() -> None:
    rng = np.random.default_rng(2)
    ring = [(-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0)]
    for _ in range(20):
        free, cells = _world(rng, 0.3)
        walls = {(x, y) for x in range(SIDE) for y in range(SIDE) if (x, y) not in cells and rng.random() < 0.5}
        things = {(x, y) for x in range(SIDE) for y in range(SIDE)} - cells - walls
        harmless = _cells(paths.harmless(_board(cells), _board(things)))
        for x, y in free:
            around = [(x + dx, y + dy) for dx, dy in ring]
            kinds = [0 if cell in cells else 1 if cell in walls else 2 for cell in around]
            changes = sum((kinds[i] == 0) != (kinds[i - 1] == 0) for i in range(8))
            cramped = any(kinds[i] == 2 and kinds[i - 1] != 0 and kinds[(i + 1) % 8] != 0 for i in range(1, 8, 2))
            assert ((x, y) in harmless) == (changes <= 2 and not cramped)


@pytest.mark.fast
def test_nearby_are_the_cells_a_few_steps_away() -> None:
    corridor = _board({(x, 2) for x in range(1, 8)})
    assert _cells(paths.nearby(_board({(2, 2)}), corridor, 3)) == {(x, 2) for x in range(1, 6)}


@pytest.mark.fast
def test_of_turns_that_are_equally_good_the_better_one() -> None:
    cells, here = _board({(4, 4)}), _poses({(4, 4, 0)})
    behind, ahead = _poses({(4, 4, 2)}), _poses({(5, 4, 0)})
    for better_right, turn in ((False, LEFT), (True, RIGHT)):
        assert paths.first_action(cells, behind, here, ahead, limit=9, better_right=jnp.bool_(better_right)) == (turn, True)
    right, _ = paths.first_action(cells, _poses({(4, 4, 1)}), here, ahead, limit=9, better_right=jnp.bool_(False))
    assert right == RIGHT


def test_turns_away_from_walls_to_look_around() -> None:
    env, params = registry.make("BabyAI-GoToObjS4-v0")
    policy = expert(env, view_only=True)
    states = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 64), params)[1]
    at = jnp.argmax(states.cells[:, env.frame.index(2, 1)] != symbols.EMPTY_CELL)  # behind the agent, wherever it is put below
    state = jax.tree.map(lambda leaf: leaf[at], states)
    assert state.cells[env.frame.index(2, 1)] != symbols.EMPTY_CELL
    for (x, y, direction), turn in {(1, 2, 2): RIGHT, (1, 1, 2): LEFT, (2, 2, 1): RIGHT, (1, 2, 1): LEFT}.items():
        here = state.replace(position=jnp.int32(env.frame.index(x, y)), direction=jnp.int32(direction))
        inputs = PolicyInput(None, None, None, jnp.ones(1, bool), jax.tree.map(lambda leaf: leaf[None], here))
        assert policy.act(None, policy.init(1), inputs, jax.random.key(0))[1] == turn


def test_finds_its_way_out_of_crowded_rooms() -> None:
    """Three levels in which there is hardly room to put things down, and none of it known at first."""
    env, params = registry.make("BabyAI-SynthS5R2-v0")
    policy = expert(env, view_only=True)

    @jax.jit
    def play(keys: jax.Array) -> jax.Array:
        num = keys.shape[0]

        def step(loop: tuple, time: jax.Array) -> tuple[tuple, None]:
            carry, state, over, success = loop
            inputs = PolicyInput(None, None, None, jnp.full(num, time == 0), state)
            carry, action, _ = policy.act(None, carry, inputs, keys[0])
            _, state, _, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
            return (carry, state, over | terminated | truncated, success | info["success"] & ~over), None

        _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
        start = (policy.init(num), state, jnp.zeros(num, bool), jnp.zeros(num, bool))
        return jax.lax.scan(step, start, jnp.arange(160))[0][3]

    assert play(jax.random.split(jax.random.key(0), 600)[jnp.array([7, 282, 468])]).all()


def test_what_cannot_be_solved_is_proved_so() -> None:
    env, params = registry.make("BabyAI-UnlockLocal-v0")
    _, state = env.reset(jax.random.key(0), params)
    state = jax.device_get(state)
    assert not out_of_reach(env.frame, state)
    key = symbols.kind_of(state.cells) == symbols.KEY
    assert out_of_reach(env.frame, state.replace(cells=np.where(key, np.uint8(symbols.WALL_CELL), state.cells)))

    env, params = registry.make("BabyAI-OpenRedDoor-v0")
    _, state = env.reset(jax.random.key(0), params)
    state = jax.device_get(state)
    assert not exhausted(env, state)
    door = symbols.kind_of(state.cells) == symbols.DOOR_CLOSED
    locked = np.uint8(symbols.symbol(symbols.DOOR_LOCKED, symbols.RED))
    assert exhausted(env, state.replace(cells=np.where(door, locked, state.cells)))
