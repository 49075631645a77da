"""Missions as data: one small language for all that MiniGrid and BabyAI ask of an agent.

A mission is at most four leaves, two in each half, and the order of the halves. A leaf is a verb and up to two descriptions of
objects. BabyAI's four verbs combine freely; each sentence of MiniGrid is a verb of its own.

Text is words and commas. `text`, `parse`, `tokenize` and `detokenize` run on the host; `tokens` is traced.
"""

import difflib
import functools
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs import symbols
from jaxagent.types import MultiDiscrete

NUM_LEAVES = 4

# fields of a leaf
VERB, COLOUR, KIND, PLACE, COLOUR_2, KIND_2, PLACE_2, ARTICLES = range(8)
NUM_FIELDS = 8
FIELD_NAMES = ("verb", "colour", "kind", "place", "colour_2", "kind_2", "place_2", "articles")

# verbs: a rule of success and the words for it. Those of BabyAI are also the verbs of MiniGrid's levels that share a rule and
# its words: Unlock (OPEN); UnlockPickup, BlockedUnlockPickup, KeyCorridor and ObstructedMaze (PICK_UP)
NO_VERB, GO_TO, OPEN, PICK_UP, PUT_NEXT = range(5)
# reach a goal, which the engine itself rewards
REACH_GREEN_GOAL = 5  # Empty, DistShift, Dynamic-Obstacles
AVOID_LAVA = 6  # LavaCrossing, LavaGap
FIND_OPENING = 7  # SimpleCrossing
REACH_GOAL = 8  # FourRooms
USE_KEY = 9  # DoorKey
TRAVERSE_ROOMS = 10  # MultiRoom
UNLOCK_ROOM = 11  # LockedRoom: the key and its door (COLOUR, KIND = KEY), the room where the key is (COLOUR_2)
PLAY = 12  # Playground: nothing to succeed at, and no words
# rules of their own
STOP_NEXT_TO = 13  # GoToDoor, GoToObject: `done` beside the target, whichever way the agent looks
PUT_NEAR = 14  # PutNear
GET, GO_GET, FETCH, GO_FETCH, MUST_FETCH = range(15, 20)  # Fetch: one rule in five wordings
OPEN_RED_THEN_BLUE = 20  # RedBlueDoors
FIND_MATCH = 21  # Memory
NUM_VERBS = 22

# kinds of objects in a description; 0 is none. A colour is 1 + `symbols`' colour, 0 is none
OBJECT, BOX, BALL, KEY, DOOR = range(1, 6)

# places, seen from where the agent starts; 0 is none
ON_LEFT, ON_RIGHT, IN_FRONT, BEHIND = range(1, 5)

# articles: "a" instead of "the" before the first and the second description of BabyAI's verbs
A_FIRST, A_SECOND = 1, 2

# orders of the halves
ALONE, THEN, AFTER = range(3)


class Mission(NamedTuple):
    leaves: jax.Array  # uint8 [4, 8]: leaves 0 and 1 are the first half, 2 and 3 the second; an unused leaf is zero
    order: jax.Array  # uint8: ALONE, THEN ("A, then B") or AFTER ("A after you B")


class Verb(NamedTuple):
    """How a verb reads.

    Attributes:
      template: its words; one in capitals stands for a field of the leaf, `ARTICLE` and `ARTICLE_2` for the bits of the last.
      kinds: what the first and the second description may be of.
      family: BabyAI's verbs take any description and combine; MiniGrid's stand alone, and want every field they name.
    """

    template: str
    kinds: tuple[tuple[int, ...], ...] = ()
    family: Literal["babyai", "minigrid"] = "minigrid"


_THING = "ARTICLE COLOUR KIND PLACE"
_THING_2 = "ARTICLE_2 COLOUR_2 KIND_2 PLACE_2"
_PORTABLE = (BOX, BALL, KEY)
_LOOSE = (OBJECT, *_PORTABLE)

VERBS: dict[int, Verb] = {
    GO_TO: Verb(f"go to {_THING}", ((*_LOOSE, DOOR),), "babyai"),
    OPEN: Verb(f"open {_THING}", ((DOOR,),), "babyai"),
    PICK_UP: Verb(f"pick up {_THING}", (_LOOSE,), "babyai"),
    PUT_NEXT: Verb(f"put {_THING} next to {_THING_2}", (_LOOSE, (*_LOOSE, DOOR)), "babyai"),
    REACH_GREEN_GOAL: Verb("get to the green goal square"),
    AVOID_LAVA: Verb("avoid the lava and get to the green goal square"),
    FIND_OPENING: Verb("find the opening and get to the green goal square"),
    REACH_GOAL: Verb("reach the goal"),
    USE_KEY: Verb("use the key to open the door and then get to the goal"),
    TRAVERSE_ROOMS: Verb("traverse the rooms to get to the goal"),
    UNLOCK_ROOM: Verb("get the COLOUR KIND from the COLOUR_2 room , unlock the COLOUR door and go to the goal", ((KEY,),)),
    PLAY: Verb(""),
    STOP_NEXT_TO: Verb("go to the COLOUR KIND", ((*_PORTABLE, DOOR),)),
    PUT_NEAR: Verb("put the COLOUR KIND near the COLOUR_2 KIND_2", (_PORTABLE, _PORTABLE)),
    GET: Verb("get a COLOUR KIND", ((BALL, KEY),)),
    GO_GET: Verb("go get a COLOUR KIND", ((BALL, KEY),)),
    FETCH: Verb("fetch a COLOUR KIND", ((BALL, KEY),)),
    GO_FETCH: Verb("go fetch a COLOUR KIND", ((BALL, KEY),)),
    MUST_FETCH: Verb("you must fetch a COLOUR KIND", ((BALL, KEY),)),
    OPEN_RED_THEN_BLUE: Verb("open the red door then the blue door"),
    FIND_MATCH: Verb("go to the matching object at the end of the hallway"),
}

_COLOURS = ("", *symbols.COLOUR_NAMES)
_KINDS = ("", "object", "box", "ball", "key", "door")
_PLACES = ("", "on your left", "on your right", "in front of you", "behind you")
_ARTICLES = ("the", "a")
_ORDERS = ("", ", then", "after you")  # between the halves; between the leaves of one it is always "and"

# what each capital word of a template may read, in the order of a leaf's fields; its last field is two
_SLOTS: dict[str, tuple[str, ...]] = {
    "COLOUR": _COLOURS,
    "KIND": _KINDS,
    "PLACE": _PLACES,
    "COLOUR_2": _COLOURS,
    "KIND_2": _KINDS,
    "PLACE_2": _PLACES,
    "ARTICLE": _ARTICLES,
    "ARTICLE_2": _ARTICLES,
}

# token 0 is padding; a token keeps its number: new words go to the end, which is where those of a new verb come
VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(
        ["", *_COLOURS, *_KINDS, *_ARTICLES]
        + " ".join([*_PLACES, *_ORDERS, "and"]).split()
        + [word for verb in VERBS.values() for word in verb.template.split() if word not in _SLOTS]
    )
)
_TOKENS = {word: token for token, word in enumerate(VOCABULARY)}

_LONGEST_LEAF, _LONGEST_COMBINING = 18, 17  # tokens of UNLOCK_ROOM and of PUT_NEXT
MAX_TOKENS = 72  # four leaves, "and" twice, and ", then" or "after you"

# spaces of the two encodings of a mission
_FIELD_SIZES = (NUM_VERBS, len(_COLOURS), len(_KINDS), len(_PLACES), len(_COLOURS), len(_KINDS), len(_PLACES), 4)
LEAVES_SPACE = MultiDiscrete((*_FIELD_SIZES * NUM_LEAVES, len(_ORDERS)), "uint8")
TOKENS_SPACE = MultiDiscrete((len(VOCABULARY),) * MAX_TOKENS, "uint8")


def leaf(
    verb: ArrayLike,
    colour: ArrayLike = 0,
    kind: ArrayLike = 0,
    place: ArrayLike = 0,
    colour_2: ArrayLike = 0,
    kind_2: ArrayLike = 0,
    place_2: ArrayLike = 0,
    articles: ArrayLike = 0,
) -> jax.Array:
    """One leaf, uint8 `[8]`."""
    fields = (verb, colour, kind, place, colour_2, kind_2, place_2, articles)
    return jnp.stack([jnp.asarray(field, jnp.uint8) for field in fields])


def alone(leaf: jax.Array) -> Mission:
    """The mission of a single leaf."""
    return Mission(jnp.pad(leaf[None], ((0, NUM_LEAVES - 1), (0, 0))), jnp.uint8(ALONE))


def flatten(mission: Mission) -> jax.Array:
    """uint8 `[33]` of `LEAVES_SPACE`: the leaves one after the other, then the order."""
    return jnp.append(mission.leaves.ravel(), mission.order)


def unflatten(numbers: ArrayLike | Sequence[int]) -> Mission:
    """The mission that `flatten` gives these numbers for."""
    numbers = jnp.asarray(numbers, jnp.uint8)
    return Mission(numbers[:-1].reshape(NUM_LEAVES, NUM_FIELDS), numbers[-1])


# text -------------------------------------------------------------------------------------------------------------------------


def text(mission: Mission) -> str:
    """What a mission says, on the host.

    Raises:
      ValueError: the numbers are no mission.
    """
    leaves, order = np.asarray(mission.leaves), np.asarray(mission.order)
    _check_range(leaves, order)
    halves = [" and ".join(_clause(row) for row in half if row[VERB]) for half in (leaves[:2], leaves[2:])]
    sentence = f"{halves[0]} {_ORDERS[order]} {halves[1]}" if order else halves[0]
    read = _read(sentence, {int(verb) for verb in leaves[:, VERB] if verb})
    if read is None or not np.array_equal(read[0], leaves):
        raise ValueError(f"mission: leaves {leaves.tolist()} in order {order} are no mission; they read {_spaced(sentence)!r}")
    return _spaced(sentence)


def parse(text: str, verbs: Collection[int] = VERBS.keys()) -> Mission:
    """The mission that reads so, on the host.

    Args:
      text: one sentence.
      verbs: those that it may hold. Of several with the same words the lowest counts: without `verbs`, "go to the red door" is
        BabyAI's GO_TO, never MiniGrid's STOP_NEXT_TO.

    Raises:
      ValueError: an unknown word, or no mission reads so.
    """
    sentence = " ".join(_words(text))
    read = _read(sentence, verbs)
    if read is None:
        clauses = re.split(" (?:and|, then|after you) ", sentence)
        wrong = next((clause for clause in clauses if _read_clause(clause, verbs) is None), sentence)
        raise ValueError(f"mission: expected a sentence of MiniGrid or BabyAI, got {text!r}: cannot read {_spaced(wrong)!r}")
    leaves, order = read
    return Mission(jnp.asarray(leaves), jnp.uint8(order))


def _check_range(leaves: np.ndarray, order: np.ndarray) -> None:
    if leaves.shape != (NUM_LEAVES, NUM_FIELDS):
        raise ValueError(f"mission: expected leaves of shape {(NUM_LEAVES, NUM_FIELDS)}, got {leaves.shape}")
    for (i, field), value in np.ndenumerate(leaves):
        if not 0 <= value < _FIELD_SIZES[field]:
            raise ValueError(f"mission: leaf {i}, {FIELD_NAMES[field]}: expected 0 - {_FIELD_SIZES[field] - 1}, got {value}")
    if not 0 <= order < len(_ORDERS):
        raise ValueError(f"mission: order: expected 0 - {len(_ORDERS) - 1}, got {order}")


def _clause(leaf: np.ndarray) -> str:
    """The words of a leaf, every comma apart."""
    values = (*leaf[COLOUR:ARTICLES], leaf[ARTICLES] & 1, leaf[ARTICLES] >> 1)
    readings = {slot: names[value] for (slot, names), value in zip(_SLOTS.items(), values, strict=True)}
    return " ".join(_fill(VERBS[int(leaf[VERB])].template, readings))


def _fill(template: str, readings: Mapping[str, str]) -> list[str]:
    return " ".join(readings.get(word, word) for word in template.split()).split()


def _read(sentence: str, verbs: Collection[int]) -> tuple[np.ndarray, int] | None:
    """Leaves and order of the mission that reads so, every comma apart."""
    leaves = np.zeros((NUM_LEAVES, NUM_FIELDS), np.uint8)
    whole = _read_clause(sentence, verbs)
    if whole is not None:
        leaves[0] = whole
        return leaves, ALONE
    order = next((order for order in (THEN, AFTER) if f" {_ORDERS[order]} " in sentence), ALONE)
    halves = sentence.split(f" {_ORDERS[order]} ") if order else [sentence]
    clauses = [half.split(" and ") for half in halves]
    if len(halves) > 2 or any(len(half) > 2 for half in clauses):
        return None
    combining = [verb for verb in verbs if VERBS[verb].family == "babyai"]
    for i, half in enumerate(clauses):
        for j, clause in enumerate(half):
            leaf = _read_clause(clause, combining)
            if leaf is None:
                return None
            leaves[2 * i + j] = leaf
    return leaves, order


def _read_clause(clause: str, verbs: Collection[int]) -> list[int] | None:
    """The fields of the leaf that reads so."""
    for verb in sorted(verbs):
        match = _pattern(verb).fullmatch("".join(f" {word}" for word in clause.split()))
        if match:
            found = match.groupdict()
            *fields, first, second = (
                names.index(found[slot].strip()) if found.get(slot) else 0 for slot, names in _SLOTS.items()
            )
            return [verb, *fields, first | second << 1]
    return None


@functools.cache
def _pattern(verb: int) -> re.Pattern[str]:
    """Matches the clauses of a verb, with a space before every word."""
    template, kinds, family = VERBS[verb]
    readings = dict(_SLOTS)
    for slot, allowed in zip(("KIND", "KIND_2"), kinds, strict=False):
        readings[slot] = tuple(_KINDS[kind] for kind in allowed)
    pieces: list[str] = []
    for i, word in enumerate(template.split()):
        if word not in readings:
            pieces.append(f" {word}")
        elif word in template.split()[:i]:
            pieces.append(f"(?P={word})")
        else:
            choices = "|".join(f" {reading}" for reading in readings[word] if reading)
            pieces.append(f"(?P<{word}>{choices})" + "?" * (family == "babyai" and "" in readings[word]))
    return re.compile("".join(pieces))


# tokens -----------------------------------------------------------------------------------------------------------------------


def tokenize(text: str) -> np.ndarray:
    """uint8 `[72]` of any text in the words of `VOCABULARY`, 0 after its end.

    Raises:
      ValueError: an unknown word, or too many.
    """
    words = _words(text)
    if len(words) > MAX_TOKENS:
        raise ValueError(f"mission: expected at most {MAX_TOKENS} words and commas, got {len(words)}")
    padded = np.zeros(MAX_TOKENS, np.uint8)
    padded[: len(words)] = [_TOKENS[word] for word in words]
    return padded


def detokenize(tokens: ArrayLike) -> str:
    """The text of tokens `[L]`.

    Raises:
      ValueError: a number that is no token, or tokens of several texts.
    """
    numbers = np.asarray(tokens)
    if numbers.ndim != 1:
        raise ValueError(f"mission: expected tokens [L] of one text, got {list(numbers.shape)}")
    wrong = numbers[(numbers < 0) | (numbers >= len(VOCABULARY))]
    if wrong.size:
        raise ValueError(f"mission: expected tokens 0 - {len(VOCABULARY) - 1}, got {wrong[0]}")
    return _spaced(" ".join(VOCABULARY[token] for token in numbers if token))


def _words(text: str) -> list[str]:
    """Words and commas."""
    if not isinstance(text, str):
        raise ValueError(f"mission: expected text, got {text!r}")
    words = []
    for match in re.finditer(r",|[^\s,]+", text.lower()):
        word = match.group()
        if word not in _TOKENS:
            nearest = difflib.get_close_matches(word, VOCABULARY, n=1, cutoff=0.0)[0]
            raise ValueError(f"mission: unknown word {word!r} at character {match.start()} of {text!r}; nearest: {nearest!r}")
        words.append(word)
    return words


def _spaced(sentence: str) -> str:
    """With no space before a comma."""
    return sentence.replace(" ,", ",")


def tokens(mission: Mission) -> jax.Array:
    """What `tokenize` gives for the mission's text, uint8 `[72]`; traced.

    Where a mission has never more than its first leaf, `mission.leaves[:1]` will do, for an eighth of the time.
    """
    runs = jax.vmap(_run)(mission.leaves)
    out = jnp.pad(runs[0], (0, MAX_TOKENS - _LONGEST_LEAF))
    end = jnp.count_nonzero(runs[0])
    and_, order = jnp.asarray(_AND_TOKENS), jnp.asarray(_ORDER_TOKENS)[mission.order]
    for leaf, run, join in zip(mission.leaves[1:], runs[1:], (and_, order, and_), strict=False):
        joined = jnp.concatenate([join, run[:_LONGEST_COMBINING]])
        joined = jnp.where(leaf[VERB] == NO_VERB, jnp.uint8(0), joined)
        out = jax.lax.dynamic_update_slice(out, joined, (end,))  # the next leaf overwrites its padding
        end += jnp.count_nonzero(joined)
    return out


_AND_TOKENS = np.array([_TOKENS["and"]], np.uint8)
_ORDER_TOKENS = np.array([[0, 0]] + [[_TOKENS[word] for word in join.split()] for join in _ORDERS[1:]], np.uint8)

# slots of one token: that of their first reading, plus the field's value
_ONE_TOKEN = ("COLOUR", "KIND", "COLOUR_2", "KIND_2", "ARTICLE", "ARTICLE_2")


def _run(leaf: jax.Array) -> jax.Array:
    """Tokens of one leaf, uint8 `[18]`."""
    row = leaf[VERB].astype(jnp.int32)
    for coloured, place in ((leaf[COLOUR] > 0, leaf[PLACE]), (leaf[COLOUR_2] > 0, leaf[PLACE_2])):
        row = (row * 2 + coloured) * len(_PLACES) + place
    run = jnp.asarray(_runs()).at[row].get(mode="clip")
    values = (leaf[COLOUR], leaf[KIND], leaf[COLOUR_2], leaf[KIND_2], leaf[ARTICLES] & 1, leaf[ARTICLES] >> 1)
    for i, (slot, value) in enumerate(zip(_ONE_TOKEN, values, strict=True)):
        first = _TOKENS[_SLOTS[slot][-1]] - (len(_SLOTS[slot]) - 1)
        run = jnp.where(run == len(VOCABULARY) + i, value + jnp.uint8(first), run)
    return run


@functools.cache
def _runs() -> np.ndarray:
    """Tokens of leaves, uint8 `[rows, 18]`, a row for each `[verb, colour > 0, place, colour_2 > 0, place_2]`.

    What a slot of `_ONE_TOKEN` reads is left open: its number there is `len(VOCABULARY)` and its index.
    """
    codes = _TOKENS | {slot: len(VOCABULARY) + i for i, slot in enumerate(_ONE_TOKEN)}
    slots = ("COLOUR", "PLACE", "COLOUR_2", "PLACE_2")
    choices = list(itertools.product(("", "COLOUR"), _PLACES, ("", "COLOUR_2"), _PLACES))
    runs = np.zeros((NUM_VERBS, len(choices), _LONGEST_LEAF), np.uint8)
    for verb, (template, _, _) in VERBS.items():
        for i, choice in enumerate(choices):
            words = _fill(template, dict(zip(slots, choice, strict=True)))
            runs[verb, i, : len(words)] = [codes[word] for word in words]
    return runs.reshape(-1, _LONGEST_LEAF)
