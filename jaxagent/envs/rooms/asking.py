"""Drawing an instruction that fits a level.

A mission has four leaves with two descriptions each. Description `d` is the first (`d` even) or the second of leaf `d // 2`.

Letters: `K` rows of the objects, the first `N` of them things, the others doors; `T` targets of a command.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import bitboard
from jaxagent.envs.language import (
    A_FIRST,
    A_SECOND,
    ALONE,
    BEHIND,
    BOX,
    DOOR,
    IN_FRONT,
    KEY,
    NUM_LEAVES,
    OBJECT,
    ON_LEFT,
    ON_RIGHT,
    OPEN,
    PICK_UP,
    PUT_NEXT,
    THEN,
    Mission,
)
from jaxagent.envs.rooms.building import LockedRoom, Plan, Pose
from jaxagent.envs.rooms.levels import AND, BY_COLOUR, BY_KIND, BY_PLACE, COLOURS, SEQUENCE
from jaxagent.envs.symbols import GREY

_DESCRIPTIONS = np.arange(2 * NUM_LEAVES)
_FIRST = _DESCRIPTIONS % 2 == 0  # of its leaf
_PLACES = (ON_LEFT, ON_RIGHT, IN_FRONT, BEHIND)

# the wordings of a grammar: every kind, doors last, with any colour or none
_KINDS = np.arange(BOX, DOOR + 1)
_WORDING_KIND, _WORDING_COLOUR = (grid.ravel() for grid in np.meshgrid(_KINDS, np.arange(len(COLOURS) + 1), indexing="ij"))
_ROW = 64  # of cells, if they are numbered; so long that cells beside each other are in neighbouring rows or columns
_NOT_DOORS = int(np.sum(_WORDING_KIND < DOOR))


class Objects(NamedTuple):
    """What can be described. Leaves `[K, ...]`."""

    there: jax.Array  # bool, in the grid
    xy: jax.Array  # int32 [2]
    kind: jax.Array  # int32, as in a description
    colour: jax.Array  # int32, as in a description
    places: jax.Array  # int32, bit `p` is set where the place `p` of a description is right, or 0 for none


def places(plan: Plan, agent: Pose, xy: jax.Array) -> jax.Array:
    """Which places describe cells `xy`, int32 `[K, 2]`; see `Objects`."""
    dx, dy = (xy - agent.xy).T
    vertical, sign = agent.direction % 2 == 1, jnp.where(agent.direction < 2, 1, -1)
    ahead, aside = sign * jnp.where(vertical, dy, dx), sign * jnp.where(vertical, -dx, dy)  # right is positive
    here = inside(plan, agent.room, xy)
    sides = {ON_LEFT: aside < 0, ON_RIGHT: aside > 0, IN_FRONT: ahead > 0, BEHIND: ahead < 0}
    bits = [jnp.where(here & side, 1 << place, 0) for place, side in sides.items()]
    return 1 + functools.reduce(jnp.bitwise_or, bits)


def inside(plan: Plan, room: jax.Array, xy: jax.Array) -> jax.Array:
    """Which cells `xy`, int32 `[K, 2]`, are in a room or its walls."""
    size = plan.level.place.room_size
    row, column = jnp.divmod(room, plan.level.place.columns)
    offset = xy - jnp.stack([column, row]) * (size - 1)
    return jnp.all((offset >= 0) & (offset < size), axis=-1)


class Sentence(NamedTuple):
    """What is asked for; 0 for what is not there."""

    verb: jax.Array  # int32 [4]
    kind: jax.Array  # int32 [8]
    colour: jax.Array  # int32 [8]
    place: jax.Array  # int32 [8]
    order: jax.Array  # int32
    row: jax.Array  # int32, that the first description is made of, if it is made of one
    fits: jax.Array  # bool, whether there is something for each description

    @property
    def num_places(self) -> jax.Array:
        """How many places the agent is sent to."""
        return jnp.sum(self.kind != 0)


# commands ---------------------------------------------------------------------------------------------------------------------


def command(plan: Plan, slots: tuple[int, ...], objects: Objects, locked: jax.Array) -> Sentence:
    """Draws a command; its targets are for the descriptions `slots` [T]; `locked` doors, bool `[M]`."""
    command, words = plan.level.command, plan.words
    order = jnp.int32(ALONE)
    if words["order"].size:
        order = bitboard.draw(words["order"][0], command.orders)
    slot = np.array(slots)
    used = (command.things | command.doors != 0) & ((slot < NUM_LEAVES) | (order != ALONE))
    rows, found = _targets(plan, objects, locked)

    by = command.by[0] if not words["by"].size else jnp.asarray(command.by)[bitboard.below(words["by"][0], command.num_by)]
    kind = jnp.where(by & BY_KIND, objects.kind[rows], OBJECT)
    colour = jnp.where(by & BY_COLOUR, objects.colour[rows], 0)
    place = jnp.zeros_like(kind)
    if words["place"].size:
        place = jnp.where(by & BY_PLACE, 1 + bitboard.below(words["place"], len(_PLACES)), 0)
    verb = _verb(plan, objects.kind[rows])

    def spread(values: jax.Array, to: np.ndarray) -> jax.Array:
        return jnp.sum(jnp.where((slot[:, None] == to) & used[:, None], values[:, None], 0), axis=0)

    return Sentence(
        verb=spread(verb, _DESCRIPTIONS[_FIRST]),
        kind=spread(kind, _DESCRIPTIONS),
        colour=spread(colour, _DESCRIPTIONS),
        place=spread(place, _DESCRIPTIONS),
        order=order,
        row=rows[0],
        fits=jnp.all(found | ~used),
    )


def _targets(plan: Plan, objects: Objects, locked: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws targets, all different. Returns their rows, int32 `[T]`, and whether there was something to draw, bool `[T]`."""
    command, num_things = plan.level.command, plan.level.things.looks.size
    things, doors = (bitboard.pack(part[None])[0] for part in (objects.there[:num_things], objects.there[num_things:]))
    if plan.some.command.locked:
        doors = jnp.where(command.locked, doors & bitboard.pack(locked[None])[0], doors)
    options = jnp.stack([command.things & things, command.doors & doors], axis=1)

    def pick(taken: jax.Array, target: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        word, board = target
        x, y, found = bitboard.choose(word, board & ~taken)
        return taken | bitboard.cell(x, y, 2), (jnp.where(y == 0, x, num_things + x), found)

    _, (rows, found) = jax.lax.scan(pick, jnp.zeros(2, jnp.uint32), (plan.words["targets"], options))
    rows = jnp.where(found, rows, 0)
    if plan.some.command.swaps:
        swapped = command.swaps & bitboard.happens(plan.words["swap"][0], 0.5)
        rows = jnp.where(swapped, jnp.concatenate([rows[1::-1], rows[2:]]), rows)
    return rows, found


def _verb(plan: Plan, kinds: jax.Array) -> jax.Array:
    """Verbs for objects of these kinds, int32 `[T]`."""
    verbs = plan.level.command.verbs
    if not plan.words["verbs"].size:
        return jnp.broadcast_to(bitboard.nth(verbs, jnp.int32(0)), kinds.shape)
    unfit = jnp.where(kinds == DOOR, jnp.uint32(1 << PICK_UP), jnp.uint32(1 << OPEN))
    return bitboard.draw(plan.words["verbs"], verbs & ~unfit)


# the grammar ------------------------------------------------------------------------------------------------------------------


def grammar(plan: Plan, objects: Objects, locked: LockedRoom) -> Sentence:
    """Draws any instruction of which each description matches something."""
    verb, order = _structure(plan)
    first_verb = jnp.repeat(verb, 2, total_repeat_length=_DESCRIPTIONS.size)
    used = (first_verb != 0) & (_FIRST | (first_verb == PUT_NEXT))

    right = _right(plan, objects, locked)
    places = plan.level.grammar.places
    weight = jnp.where(places, 4 * (right & 1) + bitboard.count(right >> 1), right & 1)  # no place half of the time
    ends = bitboard.running_total(weight)
    other, total = ends[_NOT_DOORS - 1], ends[-1]
    low = jnp.where(_FIRST & (first_verb == OPEN), other, 0)
    high = jnp.where(_FIRST & ((first_verb == PICK_UP) | (first_verb == PUT_NEXT)), other, total)
    rank = low + bitboard.below(plan.words["descriptions"], high - low)
    wording = jnp.minimum(jnp.sum(ends <= rank[:, None], axis=1), ends.size - 1)
    rest = rank - (ends - weight)[wording]
    named = bitboard.nth(right[wording].astype(jnp.uint32) >> 1, rest - 4) + 1
    return Sentence(
        verb=verb,
        kind=jnp.where(used, jnp.asarray(_WORDING_KIND)[wording], 0),
        colour=jnp.where(used, jnp.asarray(_WORDING_COLOUR)[wording], 0),
        place=jnp.where(used & places & (rest >= 4), named, 0),
        order=order,
        row=jnp.int32(0),
        fits=jnp.all((high > low) | ~used),
    )


def _structure(plan: Plan) -> tuple[jax.Array, jax.Array]:
    """The verb of each leaf, int32 `[4]`, and the order of the halves."""
    form_word, first_word, second_word, order_word = plan.words["form"]
    form = bitboard.draw(form_word, plan.level.grammar.forms)
    halves = form == SEQUENCE
    pairs = jnp.stack([bitboard.happens(first_word, 0.5), bitboard.happens(second_word, 0.5)])
    used = jnp.stack([jnp.bool_(True), (form == AND) | halves & pairs[0], halves, halves & pairs[1]])
    verb = jnp.where(used, bitboard.draw(plan.words["leaves"], plan.level.grammar.verbs), 0)
    return verb, jnp.where(halves, THEN + bitboard.below(order_word, 2), ALONE)


def _right(plan: Plan, objects: Objects, locked: LockedRoom) -> jax.Array:
    """For each wording, the places that make it a description of something; int32 `[28]`, bits as in `Objects.places`."""
    counts = objects.there
    if plan.some.grammar.outside_lock:
        shut = locked.exists & plan.level.grammar.outside_lock & inside(plan, locked.room, objects.xy)
        counts = counts & ~shut
    matches = (objects.kind == _WORDING_KIND[:, None]) & (
        (_WORDING_COLOUR[:, None] == 0) | (objects.colour == _WORDING_COLOUR[:, None])
    )
    return jax.lax.reduce_or(jnp.where(matches & counts, objects.places, 0), axes=(1,))


# judging ----------------------------------------------------------------------------------------------------------------------


class Ruling(NamedTuple):
    mission: Mission
    members: jax.Array  # uint8 [K], as in `instructions.Task`
    accepted: jax.Array  # bool


def rule(plan: Plan, sentence: Sentence, objects: Objects, locked: LockedRoom, *, puts_next: bool) -> Ruling:
    """Finds what a sentence is about, puts it into a mission, and says whether it makes sense.

    Args:
      plan: what the level is drawn from.
      sentence: what is asked for.
      objects: what can be meant.
      locked: the locked room.
      puts_next: whether a sentence can have the verb PUT_NEXT.
    """
    level, some = plan.level, plan.some
    kind, colour, place = (field[:, None] for field in (sentence.kind, sentence.colour, sentence.place))  # [8, 1]
    matches = objects.there & ((kind == objects.kind) | (kind == OBJECT)) & ((colour == objects.colour) | (colour == 0))
    matches = matches & (objects.places >> place & 1 != 0)
    numbers = jnp.sum(matches, axis=1)
    if some.command.walls_match:
        walls = level.command.walls_match & (sentence.kind == OBJECT) & (sentence.colour == 1 + GREY)
        numbers = numbers + jnp.where(walls, jnp.sum(bitboard.count(level.place.walls)), 0)
    members = jnp.sum(matches.astype(jnp.uint8) << _DESCRIPTIONS.astype(np.uint8)[:, None], axis=0, dtype=jnp.uint8)

    several = (numbers > 1).reshape(NUM_LEAVES, 2)
    said = jnp.stack([sentence.colour, sentence.kind, sentence.place], axis=1).reshape(NUM_LEAVES, 6)
    articles = several[:, 0] * A_FIRST + several[:, 1] * A_SECOND
    leaves = jnp.concatenate([sentence.verb[:, None], said, articles[:, None]], axis=1)
    mission = Mission(leaves.astype(jnp.uint8), sentence.order.astype(jnp.uint8))

    accepted = sentence.fits
    if puts_next:
        accepted = accepted & ~_is_next(members, objects.xy)
    if some.grammar.spares_keys and some.locking.chance:
        key = (sentence.kind == KEY) & (sentence.colour == 1 + plan.shared[0])
        accepted = accepted & ~(level.grammar.spares_keys & locked.exists & jnp.any(key))
    return Ruling(mission, members, accepted)


def _is_next(members: jax.Array, xy: jax.Array) -> jax.Array:
    """Whether anything that is to be put next to something is there, or is the same."""
    flat = (xy @ np.array([1, _ROW], np.int32)).astype(jnp.int16)
    distance = jnp.abs(flat - flat[:, None])
    near = (distance <= 1) | (distance == _ROW)
    beside = jax.lax.reduce_or(jnp.where(near, members, jnp.uint8(0)), axes=(1,))
    return jnp.any(members & (beside >> 1) & 0b01010101 != 0)
