"""What a live environment of Farama's `minigrid` asks for, and how far it has come."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jaxagent.envs import language
from jaxagent.envs.instructions import CARRIED, FORWARD, GONE, RULES
from jaxagent.interop.farama.names import FIRST, KINDS, PLACES, SECOND
from jaxagent.interop.farama.read_things import COLOUR_NUMBERS, PORTABLE, Row, Things

_KIND_WORDS = {name: word for word, name in KINDS.items()}
_PLACE_WORDS = {name: word for word, name in PLACES.items()}


class Quest(NamedTuple):
    """What is asked for, and how far it has come; the rows of `Things` hold the rest.

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
    return 0 if colour is None else 1 + COLOUR_NUMBERS[colour], _KIND_WORDS[kind], _PLACE_WORDS[place]


def _leaf(verb: int, first: _Words = (0, 0, 0), second: _Words = (0, 0, 0), articles: int = 0) -> tuple[int, ...]:
    return verb, *first, *second, articles


def _mission(leaves: dict[int, tuple[int, ...]], order: int = language.ALONE) -> tuple[int, ...]:
    none = (0,) * language.NUM_FIELDS
    return *(field for i in range(language.NUM_LEAVES) for field in leaves.get(i, none)), order


def _reach_goal(source: Any, things: Things) -> Quest:
    quest = Quest(tuple(language.flatten(language.parse(source.mission)).tolist()))
    if quest.verbs & RULES.keys():
        raise ValueError(f"mission: expected one that asks to reach a goal, as the rules do, got {source.mission!r}")
    return quest


def _dynamic_obstacles(source: Any, things: Things) -> Quest:
    if not source.obstacles:
        raise ValueError("obstacles: expected at least one, got none")
    count = len(source.obstacles)
    for i, obstacle in enumerate(source.obstacles):
        things.needed(obstacle).rank = i - count
    return _reach_goal(source, things)._replace(level={"obstacles": count, "num_actions": FORWARD + 1})


def _fetch(source: Any, things: Things) -> Quest:
    for row in things.like(source.targetType, source.targetColor):
        row.members = FIRST
    syntax = {"get": language.GET, "go get": language.GO_GET, "fetch": language.FETCH, "go fetch": language.GO_FETCH}
    verb = syntax.get(source.mission.split(" a ")[0], language.MUST_FETCH)
    return Quest(_mission({0: _leaf(verb, _words(source.targetColor, source.targetType))}))


def _go_to_door(source: Any, things: Things) -> Quest:
    x, y = map(int, source.target_pos)
    door = things.cells[x, y]
    if door is None or door.type != "door":
        raise ValueError(f"target_pos: expected the cell of a door, got ({x}, {y})")
    row = things.needed(door)
    row.members, row.known = FIRST, row.position
    return Quest(_mission({0: _leaf(language.STOP_NEXT_TO, _words(source.target_color, "door"))}))


def _go_to_object(source: Any, things: Things) -> Quest:
    _mark(things, source.targetType, source.target_color, source.target_pos, FIRST)
    return Quest(_mission({0: _leaf(language.STOP_NEXT_TO, _words(source.target_color, source.targetType))}))


def _mark(things: Things, kind: str, colour: str, xy: Any, member: int) -> None:
    """Marks the one object of a kind and colour, which was at `xy` when the episode began."""
    row = next(things.like(kind, colour), None) or things.gone(kind, colour)
    row.members, row.known = member, things.index(xy)


def _put_near(source: Any, things: Things) -> Quest:
    moved, target = (source.moveColor, source.move_type), (source.target_color, source.target_type)
    _mark(things, source.move_type, source.moveColor, source.move_pos, FIRST)
    _mark(things, source.target_type, source.target_color, source.target_pos, SECOND)
    return Quest(_mission({0: _leaf(language.PUT_NEAR, _words(*moved), _words(*target))}))


def _red_blue_doors(source: Any, things: Things) -> Quest:
    for member, door in ((FIRST, source.red_door), (SECOND, source.blue_door)):
        row = things.needed(door)
        row.members, row.known = member, row.position
    return Quest(_mission({0: _leaf(language.OPEN_RED_THEN_BLUE)}))


def _memory(source: Any, things: Things) -> Quest:
    for member, xy in ((FIRST, source.success_pos), (SECOND, source.failure_pos)):
        things.place(xy).members = member
    return Quest(_mission({0: _leaf(language.FIND_MATCH)}), level={"pickup_toggles": True})


def _unlock(source: Any, things: Things) -> Quest:
    row = things.needed(source.door)
    row.members, row.known = FIRST, row.position
    return Quest(_mission({0: _leaf(language.OPEN, _words(None, "door"))}))


def _pick_up(source: Any, things: Things) -> Quest:
    row = things.needed(source.obj)
    row.members, row.known = FIRST, row.position
    return Quest(_mission({0: _leaf(language.PICK_UP, _words(source.obj.color, source.obj.type))}))


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
BABYAI_VERBS = frozenset(leaf.verb for leaf in _LEAVES.values())


def _babyai(source: Any, things: Things) -> Quest:
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
    return Quest(_mission(leaves, order), rules, task, combines=True)


def _verified(action: Any, carrying: Any, looked_at: bool, *, over: bool) -> bool:
    """Whether an instruction knows what was carried before the next step."""
    if over or not hasattr(action, "preCarrying"):
        return looked_at
    if action.preCarrying is not None and action.preCarrying is not carrying:
        raise ValueError("instructions: what was carried on the last step is not what is carried now")
    return looked_at and action.preCarrying is carrying


def _read(i: int, action: Any, things: Things) -> tuple[int, ...]:
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


def _find(description: Any, things: Things, member: int, *, places: bool) -> None:
    """Marks the objects of a description, and where its verifier last saw them (which must be known if `places` matter)."""
    found = {id(thing): thing for thing in description.obj_set if thing.type in (*PORTABLE, "door")}
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


def _left_since(found: Iterable[Any], things: Things, xy: Any) -> Row:
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


# by the class that `step` comes from
QUESTS: dict[str, Callable[[Any, Things], Quest]] = {
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
