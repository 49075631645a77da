"""Proofs by search that a level has no solution."""

import functools
from typing import Any

import jax
import numpy as np

from jaxagent.envs import language, symbols
from jaxagent.envs.grid import Frame, GridEnv, GridState

BATCH = 2048  # states stepped at once
MOST = 400_000  # states that an exhaustive search may find


def unsolvable(env: GridEnv, state: GridState) -> str | None:
    """How it was proved that no actions lead to success, or None if that was not proved.

    Args:
      state: at the start of an episode, of one level.
    """
    state = jax.device_get(state)
    if out_of_reach(env.frame, state):
        return "out of reach"
    if exhausted(env, state):
        return "exhausted"
    return None


def out_of_reach(frame: Frame, state: GridState) -> bool:
    """Whether something that the mission needs stays out of reach even of an agent that walks through all but walls and the
    doors whose keys are out of reach as well."""
    assert state.objects is not None and state.task is not None
    symbol, position = state.objects.symbol, state.objects.position.astype(int)
    cells, kinds = state.cells, symbols.kind_of(state.cells)
    contents = np.full(symbol.size, -1) if state.objects.contents is None else state.objects.contents
    opened = {int(state.carrying)} | ({int(symbol[state.objects.held])} if state.objects.held >= 0 else set())  # symbols had
    new, reached = [int(state.position)], {int(state.position)}
    while new:
        cell = new.pop()
        for near in (cell + frame.steps).tolist():
            if near in reached or kinds[near] in (symbols.WALL, symbols.LAVA):
                continue
            if kinds[near] == symbols.DOOR_LOCKED and _key(cells[near]) not in opened:
                continue
            reached.add(near)
            new.append(near)
            inside = [int(symbol[row]) for row in contents[position == near] if row >= 0]
            had = {int(cells[near]), *inside} - opened
            opened |= had
            if any(symbols.kind_of(thing) == symbols.KEY for thing in had):  # it may open a door met before
                new += sorted(reached)
    shore = reached | {near for cell in reached for near in (cell + frame.steps).tolist()}  # a locked door can be gone to
    opened_doors = {cell for cell in shore if kinds[cell] != symbols.DOOR_LOCKED or cell in reached}

    def there(bit: int, shore: set[int] = shore) -> bool:
        rows = np.flatnonzero(state.task.members >> bit & 1)
        boxes = [np.flatnonzero(contents == row) for row in rows]
        places = {int(p) for p in position[rows]} | {int(position[box[0]]) for box in boxes if box.size}
        return bool(places & shore) or bool((position[rows] == -1).any()) or int(state.objects.held) in rows.tolist()

    verbs = state.mission.leaves[:, language.VERB]
    two = (language.PUT_NEXT, language.PUT_NEAR)
    return not all(
        there(2 * i, opened_doors if verb == language.OPEN else shore) and (verb not in two or there(2 * i + 1))
        for i, verb in enumerate(verbs)
        if verb
    )


def _key(door: int) -> int:
    return int(symbols.symbol(symbols.KEY, symbols.colour_of(int(door))))


def exhausted(env: GridEnv, state: GridState) -> bool:
    """Whether all states that can be reached are found, and none is a success."""
    step = _each_action(env)
    seen, front = set(), [state.replace(step_count=np.int32(0))]
    while front:
        batch, front = front[:BATCH], front[BATCH:]
        padded = batch + batch[-1:] * (BATCH - len(batch))
        after, ended, success = jax.device_get(step(jax.tree.map(lambda *leaves: np.stack(leaves), *padded)))
        if success.any():
            return False
        leaves, structure = jax.tree.flatten(after)
        rows = np.concatenate([leaf.reshape(BATCH, 7, -1).astype(np.int16) for leaf in leaves], axis=2)
        for i, action in np.argwhere(~ended[: len(batch)]):
            name = rows[i, action].tobytes()
            if name not in seen:
                seen.add(name)
                front.append(jax.tree.unflatten(structure, [leaf[i, action] for leaf in leaves]))
        if len(seen) > MOST:
            return False
    return True


@functools.cache
def _each_action(env: GridEnv) -> Any:
    """Each action in each of `BATCH` states: what follows, whether that is an end, and whether a success."""

    def one(state: GridState, action: jax.Array) -> tuple[GridState, jax.Array, jax.Array]:
        _, after, _, terminated, _, info = env.step(jax.random.key(0), state, action, env.default_params)
        return after.replace(step_count=0), terminated, info["success"]

    each = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    return jax.jit(lambda states: each(states, jax.numpy.arange(7)))
