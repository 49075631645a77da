"""Live environments of Farama's `minigrid`, turned into ours at the state that they are in.

Letters: `K` objects with an identity.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import language, registry, symbols, view
from jaxagent.envs.grid import Frame, GridEnv, GridParams, GridState, Level, Objects
from jaxagent.envs.instructions import CARRIED, FORWARD, GONE, NOTHING, RULES, Task
from jaxagent.envs.layout import Layout
from jaxagent.interop.to_farama import FIRST, KINDS, PLACES, SECOND, to_farama

__all__ = ["from_farama", "to_farama"]

_DOOR_KINDS = (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED)  # by MiniGrid's state
_KIND_WORDS = {name: word for word, name in KINDS.items()}
_PLACE_WORDS = {name: word for word, name in PLACES.items()}
_PORTABLE = ("key", "ball", "box")
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
    _check(source)
    things = _Things(source)
    quest = _RULES[_owner(source, "step")](source, things)
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
    if _owner(source, "step") not in _RULES:
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
    if source.carrying is not None and source.carrying.type not in _PORTABLE:
        raise ValueError(f"carrying: expected a key, ball or box, got a {source.carrying.type}")
    x, y = source.agent_pos
    if not (0 < x < width - 1 and 0 < y < height - 1 and source.agent_dir in range(4)):
        raise ValueError(f"agent: expected a cell inside the walls and a direction 0 - 3, got ({x}, {y}), {source.agent_dir}")


def _owner(source: Any, method: str) -> str:
    """`module.Class` of the class that a method comes from."""
    owner = next(base for base in type(source).__mro__ if method in vars(base))
    return f"{owner.__module__}.{owner.__name__}"


# objects ----------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Row:
    """An object, as it becomes a row of `Objects` and `Task`, in the order of ranks. Those up to rank 0 are needed."""

    symbol: int
    position: int = GONE
    inside: "_Row | None" = None
    rank: int = 0
    members: int = 0
    known: int = GONE


class _Things:
    """Keys, balls, boxes and doors of an environment, on the grid, in hands and in boxes."""

    def __init__(self, source: Any) -> None:
        self.frame = Frame(source.width, source.height)
        self.cells = {(i % source.width, i // source.width): thing for i, thing in enumerate(source.grid.grid)}
        self._rows: dict[Any, _Row] = {}  # by the identity of the `WorldObj`
        self.carried = None if source.carrying is None else self._add(source.carrying, CARRIED)
        for xy, thing in self.cells.items():
            if thing is not None and thing.type in (*_PORTABLE, "door"):
                self._add(thing, self.frame.index(*xy))

    def _add(self, thing: Any, position: int) -> _Row:
        if id(thing) in self._rows:
            raise ValueError(f"grid: one and the same {thing.color} {thing.type} is in two places")
        row = self._rows[id(thing)] = _Row(_symbol(thing), position, rank=2 if thing.type == "door" else 1)
        if thing.contains is not None:
            row.inside = self._add(thing.contains, GONE)
            row.rank = row.inside.rank = 0
        return row

    def needed(self, thing: Any) -> _Row:
        """The row of an object that the rules are about, wherever it is now."""
        row = self._rows.setdefault(id(thing), _Row(_symbol(thing)))
        row.rank = min(row.rank, 0)
        return row

    def like(self, kind: str, colour: str) -> Iterator[_Row]:
        """Rows of all objects of a kind and colour, needed from now on."""
        symbol = _symbol_of(kind, colour)
        for row in self._rows.values():
            if row.symbol == symbol:
                row.rank = min(row.rank, 0)
                yield row

    def gone(self, kind: str, colour: str) -> _Row:
        """A row for a key, ball or box that is nowhere any more."""
        return self._new(_Row(_symbol_of(kind, colour)))

    def place(self, xy: Any) -> _Row:
        """A row for an empty cell."""
        return self._new(_Row(symbols.EMPTY_CELL, self.index(xy), known=self.index(xy)))

    def _new(self, row: _Row) -> _Row:
        self._rows["new", len(self._rows)] = row
        return row

    def index(self, xy: Any) -> int:
        return int(self.frame.index(*map(int, xy)))

    def rows(self, size: int | None, *, all_objects: bool) -> list[_Row]:
        """Those needed, with `all_objects` all that are portable; or as many as there is room for, if a `size` is given."""
        rows = sorted(self._rows.values(), key=lambda row: row.rank)
        return rows[:size] if size is not None else [row for row in rows if row.rank <= int(all_objects)]


def _symbol_of(kind: str, colour: str) -> int:
    return symbols.symbol(symbols.KIND_NAMES.index(kind), symbols.COLOUR_NAMES.index(colour))


def _symbol(thing: Any) -> int:
    """The symbol of a `WorldObj`, or of None."""
    if thing is None:
        return symbols.EMPTY_CELL
    kind, colour, state = thing.encode()
    return symbols.symbol(_DOOR_KINDS[state] if kind == symbols.DOOR_OPEN else kind, colour)


# rules ------------------------------------------------------------------------------------------------------------------------


class _Quest(NamedTuple):
    """What is asked for, and how far it has come; the rows of `_Things` hold the rest.

    Attributes:
      mission: as the field `mission` of `Level`.
      level: fields of `Level` that belong to the rules.
      task: fields of `Task` that are numbers.
      combines: whether it is in BabyAI's language.
    """

    mission: tuple[int, ...]
    level: dict[str, Any] = {}
    task: dict[str, int] = {}
    combines: bool = False

    @property
    def verbs(self) -> frozenset[int]:
        return frozenset(self.mission[: -1 : language.NUM_FIELDS]) - {language.NO_VERB}

    @property
    def compound(self) -> bool:
        return any(self.mission[language.NUM_FIELDS :])

    @property
    def all_objects(self) -> bool:
        """Whether the rules need the identity of everything portable."""
        return self.combines and self.verbs != {language.OPEN}


_Words = tuple[int, int, int]  # for colour, kind and place


def _words(colour: str | None, kind: str | None, place: str | None = None) -> _Words:
    return 0 if colour is None else 1 + symbols.COLOUR_NAMES.index(colour), _KIND_WORDS[kind], _PLACE_WORDS[place]


def _leaf(verb: int, first: _Words = (0, 0, 0), second: _Words = (0, 0, 0), articles: int = 0) -> tuple[int, ...]:
    return verb, *first, *second, articles


def _mission(leaves: dict[int, tuple[int, ...]], order: int = language.ALONE) -> tuple[int, ...]:
    none = (0,) * language.NUM_FIELDS
    return *(field for i in range(language.NUM_LEAVES) for field in leaves.get(i, none)), order


def _reach_goal(source: Any, things: _Things) -> _Quest:
    quest = _Quest(tuple(language.flatten(language.parse(source.mission)).tolist()))
    if quest.verbs & RULES.keys():
        raise ValueError(f"mission: expected one that asks to reach a goal, as the rules do, got {source.mission!r}")
    return quest


def _dynamic_obstacles(source: Any, things: _Things) -> _Quest:
    count = len(source.obstacles)
    for i, obstacle in enumerate(source.obstacles):
        things.needed(obstacle).rank = i - count
    return _reach_goal(source, things)._replace(level={"obstacles": count, "num_actions": FORWARD + 1})


def _fetch(source: Any, things: _Things) -> _Quest:
    for row in things.like(source.targetType, source.targetColor):
        row.members = FIRST
    syntax = {"get": language.GET, "go get": language.GO_GET, "fetch": language.FETCH, "go fetch": language.GO_FETCH}
    verb = syntax.get(source.mission.split(" a ")[0], language.MUST_FETCH)
    return _Quest(_mission({0: _leaf(verb, _words(source.targetColor, source.targetType))}))


def _go_to_door(source: Any, things: _Things) -> _Quest:
    x, y = map(int, source.target_pos)
    door = things.cells[x, y]
    if door is None or door.type != "door":
        raise ValueError(f"target_pos: expected the cell of a door, got ({x}, {y})")
    row = things.needed(door)
    row.members, row.known = FIRST, row.position
    return _Quest(_mission({0: _leaf(language.STOP_NEXT_TO, _words(source.target_color, "door"))}))


def _go_to_object(source: Any, things: _Things) -> _Quest:
    _mark(things, source.targetType, source.target_color, source.target_pos, FIRST)
    return _Quest(_mission({0: _leaf(language.STOP_NEXT_TO, _words(source.target_color, source.targetType))}))


def _mark(things: _Things, kind: str, colour: str, xy: Any, member: int) -> None:
    """Marks the one object of a kind and colour, which was at `xy` when the episode began."""
    row = next(things.like(kind, colour), None) or things.gone(kind, colour)
    row.members, row.known = member, things.index(xy)


def _put_near(source: Any, things: _Things) -> _Quest:
    moved, target = (source.moveColor, source.move_type), (source.target_color, source.target_type)
    _mark(things, source.move_type, source.moveColor, source.move_pos, FIRST)
    _mark(things, source.target_type, source.target_color, source.target_pos, SECOND)
    return _Quest(_mission({0: _leaf(language.PUT_NEAR, _words(*moved), _words(*target))}))


def _red_blue_doors(source: Any, things: _Things) -> _Quest:
    for member, door in ((FIRST, source.red_door), (SECOND, source.blue_door)):
        row = things.needed(door)
        row.members, row.known = member, row.position
    return _Quest(_mission({0: _leaf(language.OPEN_RED_THEN_BLUE)}))


def _memory(source: Any, things: _Things) -> _Quest:
    for member, xy in ((FIRST, source.success_pos), (SECOND, source.failure_pos)):
        things.place(xy).members = member
    return _Quest(_mission({0: _leaf(language.FIND_MATCH)}), level={"pickup_toggles": True})


def _unlock(source: Any, things: _Things) -> _Quest:
    row = things.needed(source.door)
    row.members, row.known = FIRST, row.position
    return _Quest(_mission({0: _leaf(language.OPEN, _words(None, "door"))}))


def _pick_up(source: Any, things: _Things) -> _Quest:
    row = things.needed(source.obj)
    row.members, row.known = FIRST, row.position
    return _Quest(_mission({0: _leaf(language.PICK_UP, _words(source.obj.color, source.obj.type))}))


# BabyAI's rules ---------------------------------------------------------------------------------------------------------------


class _Leaf(NamedTuple):
    verb: int
    descriptions: tuple[str, ...]  # attributes of the instruction


_LEAVES = {
    "GoToInstr": _Leaf(language.GO_TO, ("desc",)),
    "OpenInstr": _Leaf(language.OPEN, ("desc",)),
    "PickupInstr": _Leaf(language.PICK_UP, ("desc",)),
    "PutNextInstr": _Leaf(language.PUT_NEXT, ("desc_move", "desc_fixed")),
}


def _babyai(source: Any, things: _Things) -> _Quest:
    from minigrid.envs.babyai.core import verifier

    halves, order, lead = [source.instrs], language.ALONE, 0
    kind = type(source.instrs).__name__
    if kind in ("BeforeInstr", "AfterInstr"):
        halves = [source.instrs.instr_a, source.instrs.instr_b]
        order, lead = (language.THEN, 0) if kind == "BeforeInstr" else (language.AFTER, 1)
    leaves: dict[int, tuple[int, ...]] = {}
    task = dict.fromkeys(("strict", "done", "verified", "matched"), 0)
    led = len(halves) == 2 and (source.instrs.b_done if lead else source.instrs.a_done) == "success"
    for half, instruction in enumerate(halves):
        pair = type(instruction).__name__ == "AndInstr"
        actions = (instruction.instr_a, instruction.instr_b) if pair else (instruction,)
        ends = (instruction.a_done, instruction.b_done) if pair else ("success" if half == lead and led else False,)
        for i, (action, end) in enumerate(zip(actions, ends, strict=True), start=2 * half):
            leaves[i] = _read(i, action, things)
            looked_at = source.step_count > 0 if half == lead else led
            task["strict"] |= bool(getattr(action, "strict", False)) << i
            task["done"] |= (end == "success") << i
            task["matched"] |= bool(action.lastStepMatch) << i
            task["verified"] |= _verified(action, source.carrying, looked_at, over=end == "success") << i
    for sequence in (source.instrs, *halves):
        if type(sequence).__name__ not in _LEAVES and sequence.strict:
            raise ValueError(f"instructions: a strict {type(sequence).__name__} is in no level")
    rules = {
        "starts_holding": bool(getattr(source, "start_carrying", False)),
        "done_action": bool(verifier.use_done_actions),
    }
    return _Quest(_mission(leaves, order), rules, task, combines=True)


def _verified(action: Any, carrying: Any, looked_at: bool, *, over: bool) -> bool:
    """Whether an instruction knows what was carried before the next step."""
    if over or not hasattr(action, "preCarrying"):
        return looked_at
    if action.preCarrying is not None and action.preCarrying is not carrying:
        raise ValueError("instructions: what was carried on the last step is not what is carried now")
    return looked_at and action.preCarrying is carrying


def _read(i: int, action: Any, things: _Things) -> tuple[int, ...]:
    """Leaf `i` of the mission; marks the objects that it is about."""
    name = type(action).__name__
    if name not in _LEAVES:
        raise ValueError(f"instructions: expected one of {', '.join(_LEAVES)}, got {name}")
    verb, attributes = _LEAVES[name]
    words, articles = [], 0
    for second, attribute in enumerate(attributes):
        description = getattr(action, attribute)
        words.append(_words(description.color, description.type, description.loc))
        articles |= (len(description.obj_set) > 1) << second
        _find(description, things, 1 << 2 * i + second, places=verb == language.GO_TO or bool(second))
    return _leaf(verb, words[0], words[-1] if len(words) > 1 else (0, 0, 0), articles)


def _find(description: Any, things: _Things, member: int, *, places: bool) -> None:
    """Marks the objects of a description, and where its verifier last saw them (which must be known if `places` matter)."""
    found = {id(thing): thing for thing in description.obj_set if thing.type in (*_PORTABLE, "door")}
    if places and len(found) < len(description.obj_set):
        raise ValueError("instructions: walls are described, which have no identity")
    for thing in found.values():
        things.needed(thing).members |= member
    for xy in description.obj_poss:
        thing = things.cells[int(xy[0]), int(xy[1])]
        if id(thing) in found:
            things.needed(thing).known = things.index(xy)
        elif places:
            _left_since(found.values(), things, xy).known = things.index(xy)


def _left_since(found: Iterable[Any], things: _Things, xy: Any) -> _Row:
    """The row of what was at `xy` when the verifier last looked: opened since, or else the one that is carried."""
    for thing in found:
        row = things.needed(thing)
        if row.position == GONE and thing.cur_pos is not None and tuple(thing.cur_pos) == tuple(xy):
            return row
    for thing in found:
        row = things.needed(thing)
        if row.position == CARRIED:
            return row
    raise ValueError(f"instructions: none of the objects that they are about was ever at {tuple(map(int, xy))}")


_RULES: dict[str, Callable[[Any, _Things], _Quest]] = {
    "minigrid.minigrid_env.MiniGridEnv": _reach_goal,
    "minigrid.envs.dynamicobstacles.DynamicObstaclesEnv": _dynamic_obstacles,
    "minigrid.envs.fetch.FetchEnv": _fetch,
    "minigrid.envs.gotodoor.GoToDoorEnv": _go_to_door,
    "minigrid.envs.gotoobject.GoToObjectEnv": _go_to_object,
    "minigrid.envs.putnear.PutNearEnv": _put_near,
    "minigrid.envs.redbluedoors.RedBlueDoorEnv": _red_blue_doors,
    "minigrid.envs.memory.MemoryEnv": _memory,
    "minigrid.envs.unlock.UnlockEnv": _unlock,
    "minigrid.envs.unlockpickup.UnlockPickupEnv": _pick_up,
    "minigrid.envs.blockedunlockpickup.BlockedUnlockPickupEnv": _pick_up,
    "minigrid.envs.keycorridor.KeyCorridorEnv": _pick_up,
    "minigrid.envs.obstructedmaze.ObstructedMazeEnv": _pick_up,
    "minigrid.envs.babyai.core.roomgrid_level.RoomGridLevel": _babyai,
}


# levels and states ------------------------------------------------------------------------------------------------------------


def _level(source: Any, quest: _Quest, things: _Things) -> tuple[Level, GridState | None]:
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
        verbs = frozenset(leaf.verb for leaf in _LEAVES.values())
    constant = None if verbs else quest.mission
    level = Level(_no_generator, (source.width, source.height), source.max_steps, constant, verbs, quest.combines, **options)
    return level, None


@functools.cache
def _registered(name: str) -> tuple[Level, GridState]:
    """A level of the registry, and a state of it of which the leaves are only shapes."""
    env, params = registry.make(name)
    assert isinstance(env, GridEnv)
    return env.level, jax.eval_shape(env.reset, jax.random.key(0), params)[1]


def _belongs(source: Any, quest: _Quest, things: _Things, level: Level, shapes: GridState) -> bool:
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


def _state(source: Any, quest: _Quest, things: _Things, level: Level, shapes: GridState | None) -> GridState:
    """The state of `source`, in the shapes of its registered level."""
    grid = np.array([_symbol(cell) for cell in source.grid.grid], np.uint8).reshape(source.height, source.width)
    carrying = 0 if source.carrying is None else _symbol(source.carrying)
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


def _rows(quest: _Quest, things: _Things, shapes: GridState | None) -> list[_Row]:
    """As many rows as states of the registered level have; otherwise those needed."""
    if shapes is None:
        rows = things.rows(None, all_objects=quest.all_objects)
        size = -(-len(rows) // _ROWS) * _ROWS
    else:
        size = 0 if shapes.objects is None else shapes.objects.symbol.size
        rows = things.rows(size, all_objects=quest.all_objects)
    return rows + [_Row(0) for _ in range(size - len(rows))]


def _objects(rows: list[_Row], carried: _Row | None, *, holds: bool) -> Objects:
    """Args: the rows, which of them is in the agent's hands, and whether any box of the level may hold something."""
    number = {row: i for i, row in enumerate(rows)}
    inside = [NOTHING if row.inside is None else number[row.inside] for row in rows]
    return Objects(
        symbol=_column(rows, "symbol", "uint8"),
        position=_column(rows, "position", "int16"),
        contents=jnp.asarray(inside, jnp.int8) if holds else None,
        held=jnp.int8(NOTHING if carried is None else number.get(carried, NOTHING)),
    )


def _task(rows: list[_Row], quest: _Quest) -> Task:
    numbers = {name: jnp.uint8(quest.task.get(name, 0)) for name in ("strict", "done", "verified", "matched")}
    return Task(_column(rows, "members", "uint8"), _column(rows, "known", "int16"), **numbers)


def _column(rows: list[_Row], field: str, dtype: str) -> jax.Array:
    return jnp.asarray(np.array([getattr(row, field) for row in rows]), dtype)
