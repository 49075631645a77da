"""What success means: the rules of all verbs, with the timing of the original.

A verifier looks at what an action did (`Event`) and says for each leaf of a mission whether it succeeds or fails by it. These
answers are bits of one small integer, bit `i` for leaf `i`, so that And, Before and After are integer arithmetic.

Letters: `P` cells of the world with the padding, `K` objects with an identity.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxagent.envs import symbols, view
from jaxagent.envs.language import (
    AFTER,
    FETCH,
    FIND_MATCH,
    GET,
    GO_FETCH,
    GO_GET,
    GO_TO,
    MUST_FETCH,
    NO_VERB,
    NUM_LEAVES,
    OPEN,
    OPEN_RED_THEN_BLUE,
    PICK_UP,
    PUT_NEAR,
    PUT_NEXT,
    STOP_NEXT_TO,
    VERB,
    Mission,
)

# actions
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
NUM_ACTIONS = 7

# positions that are no cell, and rows that are none
CARRIED, GONE = -1, -2  # in the agent's hands; opened, still inside a box, or unused
NOTHING = -1

_FIRST_HALF, _SECOND_HALF = 0b0011, 0b1100  # bits of the leaves


@flax.struct.dataclass
class Task:
    """How far an instruction has come."""

    members: jax.Array  # uint8 [K]; bit 2i: the row matches leaf i's first description, bit 2i + 1: its second
    known: jax.Array  # int16 [K], flat cell where the verifier last saw the row, or negative
    strict: jax.Array  # uint8; bit i: leaf i fails on the wrong door or object
    done: jax.Array  # uint8; bit i: leaf i has succeeded, and others must follow
    verified: jax.Array  # uint8; bit i: leaf i was verified on an earlier step (before that it does not know what is carried)
    matched: jax.Array  # uint8; bit i: leaf i matched on the last verified step (with done actions)

    @classmethod
    def start(cls, members: jax.Array, positions: jax.Array, strict: jax.Array | int) -> "Task":
        """At the start of an episode, with the objects where they are."""
        none = jnp.uint8(0)
        return cls(members, positions, jnp.asarray(strict, jnp.uint8), done=none, verified=none, matched=none)


class Event(NamedTuple):
    """What an action did."""

    action: jax.Array  # int32
    agent: jax.Array  # int32, flat cell of the agent, after the action as everything that is not said to be before
    front: jax.Array  # int32, flat cell that it looks at
    entered: jax.Array  # uint8, kind of the cell that it walked onto, UNSEEN if it did not walk
    now: jax.Array  # uint8, symbol of the cell that it acted on
    carried: jax.Array  # bool, whether something was in its hands before
    carries: jax.Array  # bool, and after
    row: jax.Array  # int8, row of what is in its hands or was before, or NOTHING
    positions: jax.Array | None  # int16 [K], of the objects
    cells: jax.Array  # uint8 [P]
    stride: int  # flat distance of a cell to the one below


class Verdict(NamedTuple):
    task: Task
    success: jax.Array  # bool
    failure: jax.Array  # bool, never with `success`


# rules ------------------------------------------------------------------------------------------------------------------------
# each gives the leaves that succeed and those that fail, uint8 bits, as if all of them had the rule's verb


class Answer(NamedTuple):
    hits: jax.Array
    misses: jax.Array


Rule = Callable[[Task, Event], Answer]

_NONE = 0
_ALL = (1 << NUM_LEAVES) - 1


def _bits(condition: jax.Array, bits: jax.Array | int = _ALL) -> jax.Array:
    return jnp.where(condition, jnp.uint8(bits), jnp.uint8(_NONE))


def _first(members: jax.Array) -> jax.Array:
    """Leaves of which the first description has the member, from bits as in `Task.members`."""
    bits = members & 0b01010101
    bits = (bits | bits >> 1) & 0b00110011
    return (bits | bits >> 2) & 0b00001111


def _second(members: jax.Array) -> jax.Array:
    return _first(members >> 1)


def _where(task: Task, there: jax.Array) -> jax.Array:
    """Membership of the rows for which `there`, bool `[K]`, together."""
    return jax.lax.reduce_or(jnp.where(there, task.members, jnp.uint8(0)), axes=(0,))


def _in_front(task: Task, event: Event) -> jax.Array:
    return _where(task, task.known == event.front.astype(task.known.dtype))


def _beside(task: Task, cell: jax.Array, stride: int) -> jax.Array:
    """Members next to a cell of the world, no diagonals."""
    distance = jnp.abs(task.known - cell.astype(task.known.dtype))  # `known` is far below any cell where it is negative
    return _where(task, (distance == 1) | (distance == stride))


def _around(task: Task, cell: jax.Array, stride: int) -> jax.Array:
    """Members at most one cell away from a cell of the world, diagonals included."""
    distance = jnp.abs(task.known - cell.astype(task.known.dtype))
    return _where(task, (distance <= 1) | (jnp.abs(distance - stride) <= 1))


def _held(task: Task, event: Event) -> jax.Array:
    """Membership of what is in the agent's hands, or was before the action."""
    return jnp.where(event.row < 0, jnp.uint8(0), view.take(task.members, jnp.maximum(event.row, 0).astype(jnp.int32)))


def _is_open(door: jax.Array) -> jax.Array:
    return symbols.kind_of(door) == symbols.DOOR_OPEN


def _go_to(task: Task, event: Event) -> Answer:
    return Answer(_first(_in_front(task, event)), jnp.uint8(_NONE))


def _open(task: Task, event: Event) -> Answer:
    toggles = event.action == TOGGLE
    hits = _bits(toggles & _is_open(event.now), _first(_in_front(task, event)))
    is_door = _is_open(event.now) | (event.now >= symbols.symbol(symbols.DOOR_CLOSED, 0))
    return Answer(hits, _bits(toggles & is_door, task.strict & ~hits))


def _pick_up(task: Task, event: Event) -> Answer:
    takes = (event.action == PICKUP) & event.carries
    # only a leaf that was verified before knows that the hands were not empty
    hits = _bits(takes, _first(_held(task, event)) & ~_bits(event.carried, task.verified))
    return Answer(hits, _bits(takes, task.strict & ~hits))


def _put_next(task: Task, event: Event) -> Answer:
    drops = (event.action == DROP) & event.carried & ~event.carries
    hits = _first(_held(task, event)) & _second(_beside(task, event.front, event.stride)) & task.verified
    return Answer(_bits(drops, hits), _bits((event.action == PICKUP) & event.carries, task.strict))


def _stop_next_to(task: Task, event: Event) -> Answer:
    hits = _bits(event.action == DONE, _first(_beside(task, event.agent, event.stride)))
    return Answer(hits, _bits((event.action == DONE) | (event.action == TOGGLE), ~hits))


def _put_near(task: Task, event: Event) -> Answer:
    drops, takes = (event.action == DROP) & event.carried, (event.action == PICKUP) & event.carries
    hits = _bits(drops & ~event.carries, _second(_around(task, event.front, event.stride)))
    return Answer(hits, _bits(drops, ~hits) | _bits(takes, ~_first(_held(task, event))))


def _fetch(task: Task, event: Event) -> Answer:
    hits = _bits(event.carries, _first(_held(task, event)))
    return Answer(hits, _bits(event.carries, ~hits))


def _open_red_then_blue(task: Task, event: Event) -> Answer:
    opened = _bits((event.action == TOGGLE) & _is_open(event.now), _second(_in_front(task, event)))
    red = jnp.max(jnp.where(task.members & 1 != 0, task.known, 0))
    red_is_open = _is_open(view.take(event.cells, red.astype(jnp.int32)))
    return Answer(_bits(red_is_open, opened), _bits(~red_is_open, opened))


def _find_match(task: Task, event: Event) -> Answer:
    here = _where(task, task.known == event.agent.astype(task.known.dtype))
    return Answer(_first(here), _second(here))


RULES: dict[int, Rule] = {
    GO_TO: _go_to,
    OPEN: _open,
    PICK_UP: _pick_up,
    PUT_NEXT: _put_next,
    STOP_NEXT_TO: _stop_next_to,
    PUT_NEAR: _put_near,
    GET: _fetch,
    GO_GET: _fetch,
    FETCH: _fetch,
    GO_FETCH: _fetch,
    MUST_FETCH: _fetch,
    OPEN_RED_THEN_BLUE: _open_red_then_blue,
    FIND_MATCH: _find_match,
}

_SEES_MOVES = frozenset((GO_TO, PUT_NEXT))  # verbs whose members are looked for again after a drop


# verification -----------------------------------------------------------------------------------------------------------------


def verify(
    verbs: frozenset[int], task: Task, mission: Mission, event: Event, *, compound: bool, done_action: bool = False
) -> Verdict:
    """Judges one step.

    Args:
      verbs: those that the mission may have; only their rules are traced.
      task: before the step.
      mission: of this episode.
      event: what the step did.
      compound: whether a mission may have more leaves than the first.
      done_action: a leaf succeeds by the action DONE if it matched on the step before, and fails by it otherwise.
    """
    if verbs & _SEES_MOVES:
        assert event.positions is not None
        task = dataclasses.replace(task, known=jnp.where(event.action == DROP, event.positions, task.known))
    answer = found = _answer(verbs, task, mission, event, compound=compound)
    if done_action:
        answer = Answer(*(_bits(event.action == DONE, bits) for bits in (task.matched, ~task.matched)))
    if compound:
        looked, done, success, failure = _sequence(mission, task.done, answer)
    else:
        looked, done = jnp.uint8(1), task.done
        success, failure = answer.hits & looked != 0, answer.misses & looked != 0
    if done_action:
        looked = _bits(event.action != DONE, looked)
        task = dataclasses.replace(task, matched=task.matched & ~looked | found.hits & looked)
    return Verdict(dataclasses.replace(task, done=done, verified=task.verified | looked), success, failure)


def _answer(verbs: frozenset[int], task: Task, mission: Mission, event: Event, *, compound: bool) -> Answer:
    """What happens to each leaf by the rule of its own verb."""
    rules = {rule: [verb for verb in verbs if RULES.get(verb) is rule] for rule in RULES.values()}
    rules = {rule: members for rule, members in rules.items() if members}
    answer = Answer(jnp.uint8(0), jnp.uint8(0))
    for rule, members in rules.items():
        leaves = _ALL if len(rules) == 1 else _leaves_with(mission, members, compound=compound)
        answer = Answer(*(bits | own & leaves for bits, own in zip(answer, rule(task, event), strict=True)))
    return answer


def _leaves_with(mission: Mission, verbs: Iterable[int], *, compound: bool) -> jax.Array:
    """Leaves that have one of the verbs."""
    found = [_union(mission.leaves[i, VERB] == verb for verb in verbs) for i in range(NUM_LEAVES if compound else 1)]
    return _union(_bits(has, 1 << i) for i, has in enumerate(found))


def _union(bits: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(operator.or_, bits)


def _sequence(mission: Mission, done: jax.Array, answer: Answer) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """And, Before and After.

    The half that comes first is looked at until it is done; by the very action that completes it, the other is looked at as
    well. In a half of two leaves each is looked at until it succeeds, and none fails.

    Returns:
      Leaves looked at; leaves that are done; success; failure.
    """
    used = _union(_bits(mission.leaves[i, VERB] != NO_VERB, 1 << i) for i in range(NUM_LEAVES))
    lead = used & jnp.where(mission.order == AFTER, jnp.uint8(_SECOND_HALF), jnp.uint8(_FIRST_HALF))
    follow = used & ~lead
    pairs = (used & used >> 1) & 0b0101
    lone = used & ~(pairs | pairs << 1)

    first = _bits(done & lead != lead, lead & ~done)
    led = done | answer.hits & first
    second = _bits(led & lead == lead, follow & ~done)
    reached = led | answer.hits & second
    looked = first | second
    failure = answer.misses & looked & lone != 0
    # the leaf that ends the mission is not remembered, as the original looks at it again if it is stepped on
    last = lone & jnp.where(follow == 0, lead, follow)
    return looked, reached & ~last, reached & used == used, failure
