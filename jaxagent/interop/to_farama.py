"""States of ours, turned into live environments of Farama's `minigrid`.

Letters: `P` cells of a world with the padding, `K` objects with an identity.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import language, symbols, view
from jaxagent.envs.grid import Frame, GridEnv, GridParams, GridState
from jaxagent.envs.instructions import CARRIED, NOTHING
from jaxagent.envs.language import ARTICLES, COLOUR, COLOUR_2, KIND, KIND_2, PLACE, PLACE_2, VERB

FIRST, SECOND = 1, 2  # bits of `Task.members` for the two descriptions of the first leaf

# Farama's names for the words of descriptions
KINDS = {language.OBJECT: None, language.BOX: "box", language.BALL: "ball", language.KEY: "key", language.DOOR: "door"}
PLACES = {
    0: None,
    language.ON_LEFT: "left",
    language.ON_RIGHT: "right",
    language.IN_FRONT: "front",
    language.BEHIND: "behind",
}
_IN_HANDS = (-1, -1)  # where what is carried is


def to_farama(env: GridEnv, params: GridParams, state: GridState, *, seed: int | None = None) -> Any:
    """Farama's environment of the same id in the same state: from here on both show, pay and say the same.

    It never was reset and need not be; `reset` starts another episode of Farama's own. It has all that its `step` and its
    pictures read; what nothing but its generator reads, such as which rooms its doors join, comes with the first `reset`.
    `from_farama` turns it back into an equal state, but for the order of the rows of `objects`, and what no rule looks at.

    Args:
      env: a level that Farama registers.
      params: of the environment.
      state: one state, under way or not.
      seed: of its random numbers, by which obstacles move and `reset` draws levels; None for any.

    Returns:
      A `minigrid.minigrid_env.MiniGridEnv`, not wrapped.

    Raises:
      ImportError: `minigrid` is not installed.
      ValueError: a level that Farama does not have, or not in this size; several states at once; done actions that Farama's
        verifier is not set to, which has them in the whole process or not at all.
    """
    source = counterpart(env)
    env.check_state(state)
    state = jax.device_get(state)
    mission: Any = language.unflatten(env.level.mission) if env.level.mission else state.mission
    leaves, order = np.asarray(mission.leaves), int(mission.order)
    things = _Things(env.frame, state)

    source.np_random = np.random.default_rng(seed)
    if hasattr(source, "room_size"):
        _add_rooms(source)
    source.grid = things.grid()
    source.agent_pos, source.agent_dir = things.xy(state.position), int(state.direction)
    source.carrying = things.carried
    source.step_count, source.max_steps = int(state.step_count), int(env.limit(state, params))
    source.mission = language.text(mission)
    if _is_babyai(source):
        source.instrs = _instructions(source, leaves, order, things)
    elif int(leaves[0, VERB]) in _FIELDS:
        vars(source).update(_FIELDS[int(leaves[0, VERB])](leaves[0], things))
    if env.level.obstacles:
        source.obstacles = [things.row(row) for row in range(env.level.obstacles)]
    return source


def counterpart(env: Any) -> Any:
    """Farama's environment of the same id, never reset and not wrapped. Raises as `to_farama`."""
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers its levels)
    except ImportError as error:
        raise ImportError("minigrid is not installed: pip install jaxagent[farama]") from error
    name = env.spec.name if hasattr(env, "spec") else type(env).__name__
    if not isinstance(env, GridEnv) or not name.startswith(("MiniGrid-", "BabyAI-")) or name not in gymnasium.registry:
        raise ValueError(f"env: expected a level of MiniGrid or BabyAI that Farama registers, got {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a newer version of the level: it is this one that is asked for
        source: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    size = (source.width, source.height)
    if size != env.level.size:
        raise ValueError(
            f"env: expected {name} with Farama's {size[0]} x {size[1]} cells, got {' x '.join(map(str, env.level.size))}"
        )
    if _is_babyai(source):
        _check_done_action(env)
    source.see_through_walls = env.level.see_through_walls
    return source


def _is_babyai(source: Any) -> bool:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

    return isinstance(source, RoomGridLevel)


def _check_done_action(env: GridEnv) -> None:
    from minigrid.envs.babyai.core import verifier

    if bool(verifier.use_done_actions) != env.level.done_action:
        raise ValueError(
            f"done_action: expected {not env.level.done_action}, which Farama's verifier is set to in this whole process (by "
            f"the variable BABYAI_DONE_ACTIONS where it starts), got {env.level.done_action}"
        )


def _add_rooms(source: Any) -> None:
    """The rooms of a `RoomGrid`, which its verifiers look up. The grid that they come with is to be replaced."""
    from minigrid.core.roomgrid import RoomGrid

    RoomGrid._gen_grid(source, source.width, source.height)


# objects ----------------------------------------------------------------------------------------------------------------------


class _Things:
    """The `WorldObj`s of a state, each of them once.

    Attributes:
      carried: what is in the agent's hands, or will be by its first action; None for nothing.
      task: of the state.
    """

    def __init__(self, frame: Frame, state: GridState) -> None:
        self._frame, self._state = frame, state
        self._rows: dict[int, Any] = {}
        self.task: Any = state.task  # a `Task` wherever it is asked for
        held = NOTHING if state.objects is None else int(state.objects.held)
        self.carried = _thing(int(state.carrying), _IN_HANDS) if held == NOTHING else self.row(held)

    def grid(self) -> Any:
        from minigrid.core.grid import Grid

        frame, state = self._frame, self._state
        positions = [] if state.objects is None else state.objects.position.tolist()
        row_at = {position: row for row, position in enumerate(positions) if position >= 0}
        grid = Grid(frame.width, frame.height)
        for x, y in np.ndindex(frame.width, frame.height):
            index = frame.index(x, y)
            thing = self.row(row_at[index]) if index in row_at else _thing(int(state.cells[index]), (x, y))
            grid.set(x, y, None if thing is self.carried else thing)
        return grid

    def row(self, row: int) -> Any:
        """The object of a row, wherever it is; None where the row stands for an empty cell."""
        if row not in self._rows:
            objects: Any = self._state.objects
            position = int(objects.position[row])
            symbol = int(self._state.cells[position] if position >= 0 else objects.symbol[row])
            self._rows[row] = thing = _thing(symbol, self._place(row, position))
            inside = NOTHING if objects.contents is None else int(objects.contents[row])
            if inside != NOTHING:
                thing.contains = self.row(inside)
        return self._rows[row]

    def _place(self, row: int, position: int) -> Any:
        """The cell of an object, or where it was when it was opened."""
        if position == CARRIED:
            return _IN_HANDS
        return self.xy(position) if position >= 0 or self.task is None else self.known(row)

    def xy(self, index: Any) -> tuple[int, int]:
        y, x = divmod(int(index) - view.PAD, self._frame.stride)
        return x, y - view.PAD

    def known(self, row: int) -> tuple[int, int] | None:
        """Where the verifier last saw an object, if it did."""
        known = int(self.task.known[row])
        return self.xy(known) if known >= 0 else None

    def members(self, bit: int) -> list[int]:
        """Rows that match a description: those that the verifier last saw first, in the order in which it finds them."""
        rows = [row for row, members in enumerate(self.task.members.tolist()) if members & bit]
        return sorted(rows, key=lambda row: self.known(row) or (self._frame.width, 0))


def _thing(symbol: int, place: Any) -> Any:
    """A new `WorldObj` of a symbol, at a place; None for an empty cell."""
    from minigrid.core.world_object import WorldObj

    thing = WorldObj.decode(*_codes()[symbol])
    if thing is not None:
        thing.cur_pos = place
    return thing


@functools.cache
def _codes() -> list[list[int]]:
    """MiniGrid's object index, colour and state of every symbol."""
    return np.stack(view.decode(jnp.arange(256, dtype=jnp.uint8)), axis=1).tolist()


# what MiniGrid's levels remember ----------------------------------------------------------------------------------------------


def _target(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    target = {"target_color": _colour(leaf[COLOUR]), "target_pos": things.known(_row(things, FIRST))}
    return target if leaf[KIND] == language.DOOR else target | {"targetType": KINDS[leaf[KIND]]}


def _what_to_fetch(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {"targetColor": _colour(leaf[COLOUR]), "targetType": KINDS[leaf[KIND]]}


def _what_to_move(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {
        "moveColor": _colour(leaf[COLOUR]),
        "move_type": KINDS[leaf[KIND]],
        "move_pos": things.known(_row(things, FIRST)),
        "target_color": _colour(leaf[COLOUR_2]),
        "target_type": KINDS[leaf[KIND_2]],
        "target_pos": things.known(_row(things, SECOND)),
    }


def _two_doors(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {"red_door": things.row(_row(things, FIRST)), "blue_door": things.row(_row(things, SECOND))}


def _two_ends(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {"success_pos": things.known(_row(things, FIRST)), "failure_pos": things.known(_row(things, SECOND))}


def _door(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {"door": things.row(_row(things, FIRST))}


def _object(leaf: np.ndarray, things: _Things) -> dict[str, Any]:
    return {"obj": things.row(_row(things, FIRST))}


_FIELDS: dict[int, Callable[[np.ndarray, _Things], dict[str, Any]]] = {
    language.STOP_NEXT_TO: _target,
    language.PUT_NEAR: _what_to_move,
    language.OPEN_RED_THEN_BLUE: _two_doors,
    language.FIND_MATCH: _two_ends,
    language.OPEN: _door,
    language.PICK_UP: _object,
    **dict.fromkeys((language.GET, language.GO_GET, language.FETCH, language.GO_FETCH, language.MUST_FETCH), _what_to_fetch),
}


def _row(things: _Things, member: int) -> int:
    """The one row that matches a description."""
    (row,) = things.members(member)
    return row


def _colour(word: int) -> str | None:
    return symbols.COLOUR_NAMES[word - 1] if word else None


# BabyAI's instructions --------------------------------------------------------------------------------------------------------


def _instructions(source: Any, leaves: np.ndarray, order: int, things: _Things) -> Any:
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


def _action(source: Any, i: int, leaf: np.ndarray, things: _Things) -> Any:
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


def _description(source: Any, things: _Things, words: np.ndarray, member: int, *, several: bool) -> Any:
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
