"""Live environments of Farama's `minigrid`, turned into ours at the state that they are in."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import minigrid, symbols, view
from jaxagent.envs.grid import CARRIED, GONE, NOTHING, Frame, GridEnv, GridParams, GridState, Level, Objects
from jaxagent.envs.layout import Layout

_DOOR_KINDS = (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED)  # by MiniGrid's state


def from_farama(farama_env: Any, obs: str = "symbolic") -> tuple[GridEnv, GridParams, GridState]:
    """Converts a Farama environment after its `reset`, in any state: under way, carrying something, boxes with contents.

    Args:
      farama_env: a `minigrid.minigrid_env.MiniGridEnv`, wrapped or not; it is only read.
      obs: how our `image` is encoded (`symbolic` equals Farama's).

    Returns:
      `(env, params, state)`. A registered level keeps its generator; of any other, `env.reset` raises `ValueError`.

    Raises:
      ValueError: an environment with rules of its own, another size of view, or one that was never reset.
    """
    source = farama_env.unwrapped
    _check(source)
    level = _level(source)
    env = GridEnv(source.spec.id if source.spec else type(source).__name__, level, obs)
    env.validate()
    return env, env.default_params, _state(source, env.frame, level.missions.index(source.mission))


def _check(source: Any) -> None:
    from minigrid.minigrid_env import MiniGridEnv

    name = type(source).__name__
    if not isinstance(source, MiniGridEnv):
        raise ValueError(f"farama_env: expected a MiniGridEnv, got {name}")
    for rule in ("step", "_reward", "gen_obs", "gen_obs_grid"):
        if getattr(type(source), rule) is not getattr(MiniGridEnv, rule):
            raise ValueError(f"farama_env: {name} has its own `{rule}`; expected MiniGrid's (reach a goal, avoid lava)")
    if source.agent_view_size != view.SIZE:
        raise ValueError(f"farama_env: expected agent_view_size {view.SIZE}, got {source.agent_view_size}")
    if source.agent_pos is None:
        raise ValueError(f"farama_env: {name} was never reset")


def _level(source: Any) -> Level:
    size = (source.width, source.height)
    known = minigrid.ENVS.get(source.spec.id) if source.spec else None
    if known is None or known.size != size or source.mission not in known.missions:
        known = Level(_no_generator, size, source.max_steps, (source.mission,))
    return dataclasses.replace(known, max_steps=source.max_steps, see_through_walls=source.see_through_walls)


def _no_generator(key: jax.Array, width: int, height: int) -> Layout:
    raise ValueError("reset: this environment was converted from one state of a Farama environment and generates no levels")


def _state(source: Any, frame: Frame, mission: int) -> GridState:
    grid = np.array([_symbol(cell) for cell in source.grid.grid], np.uint8).reshape(source.height, source.width)
    agent = jnp.asarray(np.array(source.agent_pos), jnp.int32)
    state = frame.state(Layout(jnp.asarray(grid), agent, source.agent_dir, mission))
    return dataclasses.replace(
        state,
        carrying=jnp.uint8(0 if source.carrying is None else _symbol(source.carrying)),
        step_count=jnp.int32(source.step_count),
        objects=_objects(source, frame),
    )


def _symbol(cell: Any) -> int:
    """The symbol of a `WorldObj`, or of None."""
    if cell is None:
        return symbols.EMPTY_CELL
    kind, colour, state = cell.encode()
    return symbols.symbol(_DOOR_KINDS[state] if kind == symbols.DOOR_OPEN else kind, colour)


def _objects(source: Any, frame: Frame) -> Objects | None:
    """A row for each box and for whatever is inside one; None if all boxes are empty."""
    found = {frame.index(i % source.width, i // source.width): cell for i, cell in enumerate(source.grid.grid)}
    found[CARRIED] = source.carrying
    rows: list[tuple[int, int, int]] = []  # symbol, position, contents
    for position, cell in found.items():
        while cell is not None and cell.type == "box":
            inside = cell.contains
            rows.append((_symbol(cell), position, NOTHING if inside is None else len(rows) + 1))
            position, cell = GONE, inside
        if cell is not None and position == GONE:
            rows.append((_symbol(cell), GONE, NOTHING))
    if all(contents == NOTHING for _, _, contents in rows):
        return None
    table = np.array(rows)
    return Objects(
        jnp.asarray(table[:, 0], jnp.uint8), jnp.asarray(table[:, 1], jnp.int32), jnp.asarray(table[:, 2], jnp.int32)
    )
