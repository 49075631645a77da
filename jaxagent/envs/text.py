"""Worlds for language models: what an agent may know as text, and actions from text. On the host, for one episode.

    line = model(text.describe(env, observation), text.choices(env, state))
    observation, state, reward, *_ = env.step(key, state, text.parse(env, state, line), params)

An action is one of `choices`, letter by letter; spaces and line breaks around it do not count. All else is `INVALID`: no
action is looked for inside of a sentence, and none is guessed.

`INVALID` lies outside of every action space. Given to a world, it takes a step in which the agent does nothing; obstacles
still move. Tool worlds count it, pay `invalid_weight`, and drop an operation that waits for its argument. Grid worlds do not
count it: whoever parses can. A number that is too high would not do: `GridEnv` takes it for 0 in levels of three actions.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxagent.envs import language, symbols, view
from jaxagent.envs.base import check_state
from jaxagent.envs.grid import GridEnv
from jaxagent.envs.gridworld import LETTERS, MISSION, CollectorEnv, CollectorState
from jaxagent.envs.tools import base
from jaxagent.envs.tools.base import Operation, ToolEnv
from jaxagent.types import PyTree

INVALID = -1  # no action

# by number; those of the grid worlds are called as in Farama's `Actions`
GRID_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
MOVES = ("right", "down", "left", "up")

TextEnv = ToolEnv | GridEnv | CollectorEnv

_COMPASS = ("east", "south", "west", "north")  # by direction: left and right are said of places in view
_DOOR_STATES = {symbols.DOOR_OPEN: "open", symbols.DOOR_CLOSED: "closed", symbols.DOOR_LOCKED: "locked"}
_BACKGROUND = (symbols.UNSEEN, symbols.EMPTY, symbols.WALL)
_UNCOLOURED = {symbols.WALL: "a wall", symbols.LAVA: "lava"}
_AGENT_LETTER = "A"


# actions ----------------------------------------------------------------------------------------------------------------------


def choices(env: TextEnv, state: PyTree) -> list[str]:
    """The actions that mean something here, in their order.

    Calls are written `get(fact_0)` and `answer()`. Where a turn is a pair, they are words: `get`, and then `fact_0`.
    """
    return list(_actions(env, state))


def parse(env: TextEnv, state: PyTree, text: str) -> int:
    """The action of one of `choices`, `INVALID` for any other text."""
    if not isinstance(text, str):
        raise ValueError(f"text: expected a string, got {text!r}")
    return _actions(env, state).get(text.strip(), INVALID)


def render_action(env: TextEnv, state: PyTree, action: int) -> str:
    """What `parse` reads as this action.

    Raises:
      ValueError: an action that means nothing here.
    """
    for text, number in _actions(env, state).items():
        if number == action:
            return text
    raise ValueError(f"action: expected one of {sorted(_actions(env, state).values())}, got {action}")


def grammar(env: TextEnv, state: PyTree) -> str:
    """A regular expression that matches exactly `choices`, for constrained decoders."""
    return f"(?:{'|'.join(re.escape(choice) for choice in choices(env, state))})"


def _actions(env: TextEnv, state: PyTree) -> dict[str, int]:
    """The number of each action that means something here, by its text."""
    _check_state(env, state)
    if isinstance(env, CollectorEnv):
        return {move: action for action, move in enumerate(MOVES)}
    if isinstance(env, GridEnv):
        return {name: action for action, name in enumerate(GRID_ACTIONS[: env.level.num_actions])}
    names = _call_names(env) if env.turn == "single" else _words(env, int(state.operation))
    mask = np.asarray(_action_mask(env, state))
    return {name: action for action, name in enumerate(names) if mask[action]}


def _call_names(env: ToolEnv) -> list[str]:
    operations = env.world.operations
    return [f"{o.name}({argument})" for o in operations for argument in (o.arguments or ("",))]


def _words(env: ToolEnv, pending: int) -> Sequence[str]:
    """The words to choose from, where the operation `pending` waits for its argument; -1 if none does."""
    operations = env.world.operations
    return operations[pending].arguments if pending >= 0 else [operation.name for operation in operations]


@functools.partial(jax.jit, static_argnums=0)
def _action_mask(env: ToolEnv, state: PyTree) -> jax.Array:
    return env.action_mask(state)


# observations -----------------------------------------------------------------------------------------------------------------


def describe(env: TextEnv, seen: Mapping[str, Any] | PyTree) -> str:
    """What an observation shows, or the observation of a state, on the host.

    - Tool worlds: the words of its tokens, a line for the task and for each call with its reply. An operation that waits for
      its argument is `get(...)`. `... ` at the start says that a window may have cut what was before. In pair turns without a
      window an observation may begin with an argument; `transcript` joins it to its operation.
    - Grid worlds: the mission, where the agent looks, what it carries, the first wall ahead and at each side, and what is in
      its view, the nearest first, then from left to right. What it does not see is left out.
    - Collector: the mission and the map.

    Args:
      env: whose it is.
      seen: one observation, packed, symbolic or onehot where it is an image; or one state, which is shown packed.

    Raises:
      ValueError: several observations, or an image in another encoding.
    """
    _check_env(env)
    if isinstance(env, ToolEnv):
        return _described_tokens(env, seen if isinstance(seen, Mapping) else _observed(env, seen))
    if not isinstance(seen, Mapping):
        env = dataclasses.replace(env, obs="packed")
        seen = _observed(env, seen)
    cells = _symbols(env, np.asarray(seen["image"]))
    return _map(cells) if isinstance(env, CollectorEnv) else _scene(env, cells, seen)


def transcript(env: ToolEnv, observations: Iterable[Mapping[str, Any]]) -> str:
    """The task and all turns so far, from the observations of one episode, the first to the latest.

    Raises:
      ValueError: observations with a window, which are transcripts themselves: describe the latest.
    """
    if env.window is not None:
        raise ValueError("window: expected None, because windows repeat what they show; describe the latest observation")
    seen = [observations] if isinstance(observations, Mapping) else list(observations)
    tokens = np.concatenate([np.zeros(0, np.int32), *(_tokens(env, observation) for observation in seen)])
    return "\n".join(_turns(env, tokens, "task: "))


def _observed(env: TextEnv, state: PyTree) -> dict[str, Any]:
    _check_state(env, state)
    observation: dict[str, Any] = _observe(env, state)
    return observation


@functools.partial(jax.jit, static_argnums=0)
def _observe(env: TextEnv, state: PyTree) -> dict[str, jax.Array]:
    return env.observe(state)


# tool worlds


def _tokens(env: ToolEnv, observation: Mapping[str, Any]) -> np.ndarray:
    if "tokens" not in observation:
        raise ValueError(f"tokens: expected an entry of the observation, got {', '.join(map(str, observation)) or 'none'}")
    tokens = np.asarray(observation["tokens"])
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens: expected integers of one observation, [K], got {tokens.dtype} {list(tokens.shape)}")
    unknown = tokens[(tokens < 0) | (tokens >= len(env.vocabulary))]
    if unknown.size:
        raise ValueError(f"tokens: expected 0 to {len(env.vocabulary) - 1}, got {unknown[0]}")
    return tokens[tokens != base.PAD]


def _described_tokens(env: ToolEnv, observation: Mapping[str, Any]) -> str:
    tokens = _tokens(env, observation)
    if env.window is not None:
        first = "... " if tokens.size == env.window else "task: "
    else:
        first = "task: " if env.turn == "single" else ""
    return "\n".join(_turns(env, tokens, first))


def _turns(env: ToolEnv, tokens: np.ndarray, first: str) -> list[str]:
    """A line for what comes before the first call, which `first` introduces, and one for each turn."""
    operations = {base.FIRST_WORD + i: operation for i, operation in enumerate(env.world.operations)}
    turns: list[list[int]] = [[]]
    for token in tokens.tolist():
        waits = len(turns[-1]) == 1 and turns[-1][0] in operations and operations[turns[-1][0]].arguments
        if token in operations or (token == base.INVALID and not waits):
            turns.append([])
        turns[-1].append(token)
    before, *calls = ([env.vocabulary[token] for token in turn] for turn in turns)
    lines = [first + " ".join(before)] if before else []
    return lines + [
        _turn(operations[turn[0]], words) if turn[0] in operations else " ".join(words)
        for turn, words in zip(turns[1:], calls, strict=True)
    ]


def _turn(operation: Operation, words: list[str]) -> str:
    """A call and its reply."""
    name, *rest = words
    argument = ""
    if operation.arguments:
        argument, rest = (rest[0], rest[1:]) if rest and rest[0] in operation.arguments else ("...", rest)
    return f"{name}({argument})" + (f" -> {' '.join(rest)}" if rest else "")


# grid worlds


def _symbols(env: GridEnv | CollectorEnv, image: np.ndarray) -> np.ndarray:
    """The symbols that an image shows, uint8 `[x, y]`."""
    if env.obs not in ("packed", "symbolic", "onehot"):
        raise ValueError(f"obs: expected packed, symbolic or onehot, got {env.obs!r}; a state will do")
    shape = env.spec.observation["image"].shape  # type: ignore[index, union-attr]
    if image.shape != shape:
        raise ValueError(f"image: expected one, {list(shape)}, got {list(image.shape)}")
    if env.obs == "packed":
        return image
    if env.obs == "symbolic":
        kind, colour, state = np.moveaxis(image, -1, 0)
    else:
        kind, colour, state = (part.argmax(-1).astype(np.uint8) for part in np.split(image, [11, 17], axis=-1))
    shut = (kind == symbols.DOOR_OPEN) & (state > 0)
    kind = np.where(shut, symbols.DOOR_CLOSED - 1 + state, kind)
    return symbols.symbol(kind, colour).astype(np.uint8)


def _thing(symbol: int) -> str:
    """The words for what is in a cell."""
    kind, colour = symbols.kind_of(symbol), symbols.colour_of(symbol)
    if kind in _UNCOLOURED:
        return _UNCOLOURED[kind]
    state = f" ({_DOOR_STATES[kind]})" if kind in _DOOR_STATES else ""
    name = symbols.KIND_NAMES[symbols.DOOR_OPEN if state else kind]
    return f"a {symbols.COLOUR_NAMES[colour]} {name}{state}"


def _scene(env: GridEnv, cells: np.ndarray, observation: Mapping[str, Any]) -> str:
    shown = np.asarray(observation["mission"])
    leaves = env.mission_obs == "leaves"
    mission = language.text(language.unflatten(shown)) if leaves else language.detokenize(shown)
    held = int(cells[view.AGENT_XY])
    lines = [
        *([f"mission: {mission}"] if mission else []),
        f"facing: {_COMPASS[int(observation['direction'])]}",
        f"carrying: {_thing(held) if symbols.kind_of(held) not in _BACKGROUND else 'nothing'}",
        f"walls: {', '.join(_walls(cells)) or 'none in line'}",
    ]
    places = sorted((ahead + abs(aside), aside, ahead) for ahead, aside in _things(cells))
    seen = [f"{_thing(_cell(cells, ahead, aside))} {_place(ahead, aside)}" for _, aside, ahead in places]
    return "\n".join([*lines, *(f"seen: {thing}" for thing in seen or ["nothing"])])


def _cell(cells: np.ndarray, ahead: int, aside: int) -> int:
    """The symbol of a cell of the view, so many steps ahead of the agent and to its right."""
    x, y = view.AGENT_XY
    return int(cells[x + aside, y - ahead])


def _things(cells: np.ndarray) -> list[tuple[int, int]]:
    """Where the view shows anything but walls, steps ahead and to the right; without what the agent carries."""
    x, y = view.AGENT_XY
    places = [(y - int(row), int(column) - x) for column, row in np.argwhere(~np.isin(symbols.kind_of(cells), _BACKGROUND))]
    return [place for place in places if place != (0, 0)]


def _walls(cells: np.ndarray) -> list[str]:
    """How far the first wall is ahead, to the left and to the right, where one is seen."""
    x, y = view.AGENT_XY
    lines = (cells[x, y - 1 :: -1], cells[x - 1 :: -1, y], cells[x + 1 :, y])
    kinds = (symbols.kind_of(line) for line in lines)
    firsts = [int(np.argmax(line == symbols.WALL)) + 1 if np.any(line == symbols.WALL) else 0 for line in kinds]
    return [f"{steps} {way}" for steps, way in zip(firsts, ("ahead", "left", "right"), strict=True) if steps]


def _place(ahead: int, aside: int) -> str:
    parts = ([f"{ahead} ahead"] if ahead else []) + ([f"{abs(aside)} {'left' if aside < 0 else 'right'}"] if aside else [])
    return ", ".join(parts)


def _map(cells: np.ndarray) -> str:
    """The rows from the top, in the letters of `gridworld.MapLevel`, and the agent."""
    letters = {symbol: letter for letter, symbol in LETTERS.items() if letter != "S"}
    rows = [
        "".join(_AGENT_LETTER if symbols.kind_of(c) == symbols.AGENT else letters[c] for c in row) for row in cells.T.tolist()
    ]
    legend = [f"{letter} {_thing(int(symbol))}" for symbol, letter in letters.items() if symbol != symbols.EMPTY_CELL]
    lines = [f"mission: {MISSION}", f"legend: {_AGENT_LETTER} you, {', '.join(legend)}"]
    return "\n".join([*lines, *rows])


# checks -----------------------------------------------------------------------------------------------------------------------


def _check_env(env: TextEnv) -> None:
    if not isinstance(env, TextEnv):
        raise ValueError(f"env: expected a tool world, a grid world or Collector, got {type(env).__name__}")


def _check_state(env: TextEnv, state: PyTree) -> None:
    """Raises ValueError where this is not one state of `env`."""
    _check_env(env)
    if isinstance(env, GridEnv):
        env.check_state(state)
    elif isinstance(env, CollectorEnv):
        check_state(state, CollectorState, env.level.size)
    elif not isinstance(state, base.ToolState):
        raise ValueError(f"state: expected a ToolState, got {type(state).__name__}")
    elif np.ndim(state.operation):
        raise ValueError("state: expected one; of several states take one: jax.tree.map(lambda leaf: leaf[0], state)")
    elif _outline(state) != _own_outline(env):
        found = type(state.world).__name__
        raise ValueError(f"state: expected one of {env.spec.name} with the same options, got one with a {found}")


@functools.cache
def _own_outline(env: ToolEnv) -> tuple[Any, list[tuple[int, ...]]]:
    return _outline(jax.eval_shape(env.reset, jax.random.key(0), env.world.default_params)[1])


def _outline(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    """Structure and shapes."""
    return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
