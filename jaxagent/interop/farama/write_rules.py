"""What a state of ours asks for, and how far it has come, as Farama's `minigrid` remembers it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxagent.envs import language, symbols
from jaxagent.envs.language import ARTICLES, COLOUR, COLOUR_2, KIND, KIND_2, PLACE, PLACE_2, VERB
from jaxagent.interop.farama.names import FIRST, KINDS, PLACES, SECOND
from jaxagent.interop.farama.write_things import Things

# MiniGrid's levels ------------------------------------------------------------------------------------------------------------


def _target(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    target = {"target_color": _colour(leaf[COLOUR]), "target_pos": things.known(_row(things, FIRST))}
    return target if leaf[KIND] == language.DOOR else target | {"targetType": KINDS[leaf[KIND]]}


def _what_to_fetch(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {"targetColor": _colour(leaf[COLOUR]), "targetType": KINDS[leaf[KIND]]}


def _what_to_move(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {
        "moveColor": _colour(leaf[COLOUR]),
        "move_type": KINDS[leaf[KIND]],
        "move_pos": things.known(_row(things, FIRST)),
        "target_color": _colour(leaf[COLOUR_2]),
        "target_type": KINDS[leaf[KIND_2]],
        "target_pos": things.known(_row(things, SECOND)),
    }


def _two_doors(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {"red_door": things.row(_row(things, FIRST)), "blue_door": things.row(_row(things, SECOND))}


def _two_ends(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {"success_pos": things.known(_row(things, FIRST)), "failure_pos": things.known(_row(things, SECOND))}


def _door(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {"door": things.row(_row(things, FIRST))}


def _object(leaf: np.ndarray, things: Things) -> dict[str, Any]:
    return {"obj": things.row(_row(things, FIRST))}


# by the verb of the mission
FIELDS: dict[int, Callable[[np.ndarray, Things], dict[str, Any]]] = {
    language.STOP_NEXT_TO: _target,
    language.PUT_NEAR: _what_to_move,
    language.OPEN_RED_THEN_BLUE: _two_doors,
    language.FIND_MATCH: _two_ends,
    language.OPEN: _door,
    language.PICK_UP: _object,
    **dict.fromkeys((language.GET, language.GO_GET, language.FETCH, language.GO_FETCH, language.MUST_FETCH), _what_to_fetch),
}


def _row(things: Things, member: int) -> int:
    """The one row that matches a description."""
    (row,) = things.members(member)
    return row


def _colour(word: int) -> str | None:
    return symbols.COLOUR_NAMES[word - 1] if word else None


# BabyAI's instructions --------------------------------------------------------------------------------------------------------


def instructions(source: Any, leaves: np.ndarray, order: int, things: Things) -> Any:
    """The instructions of a mission, as far as they have come."""
    from minigrid.envs.babyai.core import verifier

    done = [bool(things.task.done >> i & 1) for i in range(len(leaves))]
    halves, ends = [], []
    for half in ((0, 1), (2, 3)):
        used = [i for i in half if leaves[i, VERB]]
        actions = [_action(source, i, leaves[i], things) for i in used]
        ends.append(all(done[i] for i in used))
        halves.append(actions[0] if len(actions) == 1 else None)
        if len(actions) == 2:
            halves[-1] = _joined(source, verifier.AndInstr, actions, [done[i] for i in used])
    if order == language.ALONE:
        return halves[0]
    if order == language.THEN:
        return _joined(source, verifier.BeforeInstr, halves, [ends[0], False])
    return _joined(source, verifier.AfterInstr, halves, [False, ends[1]])


def _joined(source: Any, kind: Callable[[Any, Any], Any], parts: list[Any], done: list[bool]) -> Any:
    joined = kind(*parts)
    joined.env = source
    joined.a_done, joined.b_done = ("success" if part else False for part in done)
    return joined


def _action(source: Any, i: int, leaf: np.ndarray, things: Things) -> Any:
    """The instruction of leaf `i`, as far as it has come."""
    from minigrid.envs.babyai.core import verifier

    kinds: dict[int, Any] = {
        language.GO_TO: verifier.GoToInstr,
        language.OPEN: verifier.OpenInstr,
        language.PICK_UP: verifier.PickupInstr,
        language.PUT_NEXT: verifier.PutNextInstr,
    }
    verb, task = int(leaf[VERB]), things.task
    first, second = leaf[[KIND, COLOUR, PLACE]], leaf[[KIND_2, COLOUR_2, PLACE_2]]
    parts = [_description(source, things, first, FIRST << 2 * i, several=bool(leaf[ARTICLES] & language.A_FIRST))]
    if verb == language.PUT_NEXT:
        parts.append(_description(source, things, second, SECOND << 2 * i, several=bool(leaf[ARTICLES] & language.A_SECOND)))
    strict = {} if verb == language.GO_TO else {"strict": bool(task.strict >> i & 1)}
    action = kinds[verb](*parts, **strict)
    action.env = source
    action.lastStepMatch = bool(task.matched >> i & 1)
    if verb in (language.PICK_UP, language.PUT_NEXT):
        action.preCarrying = things.carried if task.verified >> i & 1 else None
    return action


def _description(source: Any, things: Things, words: np.ndarray, member: int, *, several: bool) -> Any:
    """A description, the objects that match it, and the cells where the verifier last saw them."""
    from minigrid.envs.babyai.core.verifier import ObjDesc

    kind, colour, place = KINDS[words[0]], _colour(words[1]), PLACES[words[2]]
    description = ObjDesc(kind, colour, place)
    rows = things.members(member)
    description.obj_set = [things.row(row) for row in rows]
    description.obj_poss = [place for place in map(things.known, rows) if place]
    if kind is None and several:  # walls count as well
        description.obj_set += [
            cell for cell in source.grid.grid if cell is not None and (cell.type, cell.color) == ("wall", colour)
        ]
    return description
