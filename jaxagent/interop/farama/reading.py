"""Live environments of Farama's `minigrid`, turned into ours at the state that they are in."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import language, registry, view
from jaxagent.envs.grid import Frame, GridEnv, GridParams, GridState, Level, Objects
from jaxagent.envs.instructions import NOTHING, RULES, Task
from jaxagent.envs.layout import Layout
from jaxagent.interop.farama.read_rules import BABYAI_VERBS, QUESTS, Quest
from jaxagent.interop.farama.read_things import PORTABLE, Row, Things, symbol_of

_ROWS = 8  # objects of levels that are not registered come in multiples of it, so that compiled programs are shared


def from_farama(farama_env: Any, obs: str = "symbolic", mission: str = "leaves") -> tuple[GridEnv, GridParams, GridState]:
    """Converts a Farama environment after its `reset`, in any state: under way, carrying something, instructions half done.

    Args:
      farama_env: a `minigrid.minigrid_env.MiniGridEnv` with the rules of a registered level, wrapped or not; it is only read.
      obs: how our `image` is encoded (`symbolic` equals Farama's).
      mission: how our `mission` is encoded.

    Returns:
      `(env, params, state)`. A registered level keeps its generator, and the state has the shapes that it generates; of any
      other level, `env.reset` raises `ValueError`.

    Raises:
      ValueError: an environment with rules of its own, another size of view, one that was never reset, or a state that none
        of our levels can have.
    """
    source = getattr(farama_env, "unwrapped", farama_env)
    try:
        return _converted(source, obs, mission)
    except (AttributeError, IndexError, KeyError, OverflowError, StopIteration, TypeError) as error:  # what is not of its type
        raise ValueError(f"farama_env: expected a state that a level can have, got one that raises {error!r}") from error


def _converted(source: Any, obs: str, mission: str) -> tuple[GridEnv, GridParams, GridState]:
    _check(source)
    things = Things(source)
    quest = QUESTS[_owner(source, "step")](source, things)
    if (text := language.text(language.unflatten(quest.mission))) != source.mission:
        raise ValueError(f"mission: expected {text!r}, as its rules say, got {source.mission!r}")
    level, shapes = _level(source, quest, things)
    env = GridEnv(source.spec.id if source.spec else type(source).__name__, level, obs, mission)
    env.validate()
    return env, env.default_params, _state(source, quest, things, level, shapes)


def _check(source: Any) -> None:
    from minigrid.minigrid_env import MiniGridEnv

    name = type(source).__name__
    if not isinstance(source, MiniGridEnv):
        raise ValueError(f"farama_env: expected a MiniGridEnv, got {name}")
    for rule in ("_reward", "gen_obs", "gen_obs_grid"):
        if getattr(type(source), rule) is not getattr(MiniGridEnv, rule):
            raise ValueError(f"farama_env: {name} has its own `{rule}`; expected MiniGrid's")
    if _owner(source, "step") not in QUESTS:
        raise ValueError(f"farama_env: {name} has its own `step`; expected that of a registered level")
    if source.agent_view_size != view.SIZE:
        raise ValueError(f"farama_env: expected agent_view_size {view.SIZE}, got {source.agent_view_size}")
    if source.agent_pos is None:
        raise ValueError(f"farama_env: {name} was never reset")
    width, height = source.width, source.height
    if (source.grid.width, source.grid.height, len(source.grid.grid)) != (width, height, width * height):
        raise ValueError(f"grid: expected {width} x {height} cells, got {source.grid.width} x {source.grid.height}")
    if Frame(width, height).num_cells > np.iinfo(np.int16).max:
        raise ValueError(f"grid: {width} x {height} cells are more than can be numbered")
    if source.carrying is not None and source.carrying.type not in PORTABLE:
        raise ValueError(f"carrying: expected a key, ball or box, got a {source.carrying.type}")
    x, y = source.agent_pos
    inside = x in range(1, width - 1) and y in range(1, height - 1)
    if not (inside and source.agent_dir in range(4)):
        raise ValueError(f"agent: expected a cell inside the walls and a direction 0 - 3, got ({x}, {y}), {source.agent_dir}")
    leads_out = _owner(source, "step").endswith(".GoToDoorEnv")  # by the doors of its only room
    if not leads_out and (hole := _hole(source)) is not None:
        raise ValueError(f"grid: expected walls around the agent, who can leave it at {hole}")
    for name, least in (("step_count", 0), ("max_steps", 1)):
        if not least <= getattr(source, name) < 2**31:
            raise ValueError(f"{name}: expected {least} to 2^31 - 1, got {getattr(source, name)}")


def _hole(source: Any) -> tuple[int, int] | None:
    """A cell of the border that no wall keeps the agent from, whatever else is in the way."""
    reached = {(int(source.agent_pos[0]), int(source.agent_pos[1]))}
    ahead = list(reached)
    while ahead:
        x, y = ahead.pop()
        if x in (0, source.width - 1) or y in (0, source.height - 1):
            return x, y
        for cell in {(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)} - reached:
            found = source.grid.get(*cell)
            if found is None or found.type != "wall":
                reached.add(cell)
                ahead.append(cell)
    return None


def _owner(source: Any, method: str) -> str:
    """`module.Class` of the class that a method comes from."""
    owner = next(base for base in type(source).__mro__ if method in vars(base))
    return f"{owner.__module__}.{owner.__name__}"


# levels and states ------------------------------------------------------------------------------------------------------------


def _level(source: Any, quest: Quest, things: Things) -> tuple[Level, GridState | None]:
    """The registered level that the state belongs to, with the shapes of its states; or a new level, and None."""
    options = {"see_through_walls": source.see_through_walls, **quest.level}
    name = source.spec.id if source.spec else None
    if name in registry.ENVS:
        level, shapes = _registered(name)
        if _belongs(source, quest, things, level, shapes):
            limit = source.max_steps if shapes.max_steps is None else max(level.max_steps, source.max_steps)
            return dataclasses.replace(level, max_steps=limit, **options), shapes
    verbs = frozenset(quest.verbs & RULES.keys())
    if quest.combines:  # one level for all instructions that the environment may give, and so one compiled program
        verbs = BABYAI_VERBS
    constant = None if verbs else quest.mission
    level = Level(_no_generator, (source.width, source.height), source.max_steps, constant, verbs, quest.combines, **options)
    return level, None


@functools.cache
def _registered(name: str) -> tuple[Level, GridState]:
    """A level of the registry, and a state of it of which the leaves are only shapes."""
    env, params = registry.make(name)
    assert isinstance(env, GridEnv)
    return env.level, jax.eval_shape(env.reset, jax.random.key(0), params)[1]


def _belongs(source: Any, quest: Quest, things: Things, level: Level, shapes: GridState) -> bool:
    """Whether a registered level can have this state; not if the environment was made with other arguments."""
    needed = things.rows(None, all_objects=quest.all_objects)
    room = 0 if shapes.objects is None else shapes.objects.symbol.size
    if (source.width, source.height) != level.size or len(needed) > room:
        return False
    if any(row.inside for row in needed) and (shapes.objects is None or shapes.objects.contents is None):
        return False
    if any(getattr(level, field) != value for field, value in quest.level.items() if field != "done_action"):
        return False
    if level.mission is not None:
        return level.mission == quest.mission
    return quest.verbs <= level.verbs and level.compound >= quest.compound


def _no_generator(key: jax.Array, width: int, height: int) -> Layout:
    raise ValueError("reset: this environment was converted from one state of a Farama environment and generates no levels")


def _state(source: Any, quest: Quest, things: Things, level: Level, shapes: GridState | None) -> GridState:
    """The state of `source`, in the shapes of its registered level."""
    grid = np.array([symbol_of(cell) for cell in source.grid.grid], np.uint8).reshape(source.height, source.width)
    carrying = 0 if source.carrying is None else symbol_of(source.carrying)
    if level.starts_holding and things.carried and source.step_count == 0 and min(source.carrying.cur_pos) >= 0:
        x, y = source.carrying.cur_pos  # where the first observation shows it
        grid[y, x], carrying, things.carried.position = carrying, 0, things.index((x, y))
    agent = jnp.asarray(np.array(source.agent_pos), jnp.int32)
    state = things.frame.state(Layout(jnp.asarray(grid), agent, int(source.agent_dir)))
    rows = _rows(quest, things, shapes)
    holds = any(row.inside for row in rows) or bool(shapes and shapes.objects and shapes.objects.contents is not None)
    return dataclasses.replace(
        state,
        carrying=jnp.uint8(carrying),
        step_count=jnp.int32(source.step_count),
        mission=language.unflatten(quest.mission) if level.mission is None else None,
        max_steps=jnp.int32(source.max_steps) if shapes and shapes.max_steps is not None else None,
        objects=_objects(rows, things.carried, holds=holds) if rows else None,
        task=_task(rows, quest) if level.verbs & RULES.keys() else None,
    )


def _rows(quest: Quest, things: Things, shapes: GridState | None) -> list[Row]:
    """As many rows as states of the registered level have; otherwise those needed."""
    if shapes is None:
        rows = things.rows(None, all_objects=quest.all_objects)
        size = -(-len(rows) // _ROWS) * _ROWS
    else:
        size = 0 if shapes.objects is None else shapes.objects.symbol.size
        rows = things.rows(size, all_objects=quest.all_objects)
    return rows + [Row(0) for _ in range(size - len(rows))]


def _objects(rows: list[Row], carried: Row | None, *, holds: bool) -> Objects:
    """Args: the rows, which of them is in the agent's hands, and whether any box of the level may hold something."""
    number = {row: i for i, row in enumerate(rows)}
    inside = [NOTHING if row.inside is None else number[row.inside] for row in rows]
    return Objects(
        symbol=_column(rows, "symbol", "uint8"),
        position=_column(rows, "position", "int16"),
        contents=jnp.asarray(inside, jnp.int8) if holds else None,
        held=jnp.int8(NOTHING if carried is None else number.get(carried, NOTHING)),
    )


def _task(rows: list[Row], quest: Quest) -> Task:
    numbers = {name: jnp.uint8(quest.task.get(name, 0)) for name in ("strict", "done", "verified", "matched")}
    return Task(_column(rows, "members", "uint8"), _column(rows, "known", "int16"), **numbers)


def _column(rows: list[Row], field: str, dtype: str) -> jax.Array:
    return jnp.asarray(np.array([getattr(row, field) for row in rows]), dtype)
