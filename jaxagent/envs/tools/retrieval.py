"""Find two documents, add what they say, and answer or abstain: `Retrieval-v0`.

There are 32 documents, two on each of 16 topics, and the question is about one topic. A query shows three documents: the
topic's own two and the first of the next topic, or, where it goes wrong, one of its own and both of the next. Which of the two
was drawn for every query of the episode, so asking again may help, and however often it is asked, a topic shows no more than
four documents. `query_all` shows sixteen, among them the right two. The answer is the sum of the two facts, modulo 8.

With the default weights a query that goes well and the right answer pay 0.4 + 0.3 + 0.2 * 2/3 - 0.0125 = 0.82, and `query_all`
pays 0.4 + 0.3 + 0.2 * 2/16 - 0.0125 = 0.71 at R* = 0: sixteen documents are too many. One query alone pays 0.42 less where it
goes wrong (half of recall, of precision, and of the answer at a skew of 0.5), so it pays less than `query_all` once more than
a quarter of the queries go wrong. Asking until both are there pays more than `query_all` at any noise: new documents come from
a pool of two, so that precision stays at 2/4. Where each query brought documents of its own, it would not.
"""

from dataclasses import dataclass
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs.tools.base import Operation, Outcome, ToolEnv, ToolParams, Turn, token_of

TOPICS, DOCUMENTS, VALUES = 16, 32, 8
WIDE = 16  # documents that query_all shows
ENOUGH = 4  # documents that may be read
REPEATS, STRAYS = 0.3, 0.04  # of the demonstrations' turns: ask once more, ask about something else
_QUERY, _QUERY_ALL, _ANSWER, _ABSTAIN = range(4)
_TURNS = 12


@flax.struct.dataclass
class RetrievalParams(ToolParams):
    """Traced settings. All but `calls` is paid when the episode is answered or abstained from.

    Asking again is no loop here, and may bring nothing by bad luck: neither costs more than a call, unless the weights say so.

    Attributes:
      correct_weight: for the right answer.
      wrong_weight: for a wrong one; what makes abstaining worth while.
      recall_weight: for the share of the two documents that was read.
      precision_weight: for their share of what was read, 0 if nothing was.
      calls_weight: for every query.
      noise: how often a query misses one of its topic's two documents, a probability.
      skew: how often the answer is 0, a probability; the other seven share the rest.
    """

    max_steps: ArrayLike = np.int32(_TURNS)
    redundant_weight: ArrayLike = np.float32(0.0)
    loop_weight: ArrayLike = np.float32(0.0)
    correct_weight: ArrayLike = np.float32(0.4)
    wrong_weight: ArrayLike = np.float32(0.0)
    recall_weight: ArrayLike = np.float32(0.3)
    precision_weight: ArrayLike = np.float32(0.2)
    calls_weight: ArrayLike = np.float32(-0.1 / 8)
    noise: ArrayLike = np.float32(0.5)
    skew: ArrayLike = np.float32(0.5)


class RetrievalState(NamedTuple):
    topic: jax.Array  # int32, of the question; its documents are 2 * topic and the next
    facts: jax.Array  # int32 [2], what these say
    missed: jax.Array  # int32 [12], by each query: 0 none, 1 the first of its topic, 2 the second
    queries: jax.Array  # int32, made so far
    read: jax.Array  # uint32, a bit for each document
    right: jax.Array  # bool, answered rightly


@dataclass(frozen=True)
class Retrieval:
    """The rules."""

    name = "Retrieval-v0"
    components = ("correct", "wrong", "recall", "precision", "calls")
    task_length = 1
    reply_length = 3
    max_turns = _TURNS
    default_params = RetrievalParams()
    probabilities = ("noise", "skew")

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("query", self.words[:TOPICS], latency=200),
            Operation("query_all", latency=800, cacheable=True),
            Operation("answer", self.words[TOPICS : TOPICS + VALUES], latency=50),
            Operation("abstain", latency=50),
        )

    @property
    def words(self) -> tuple[str, ...]:
        topics = tuple(f"topic_{i}" for i in range(TOPICS))
        values, first, second = (tuple(f"{kind}_{i}" for i in range(VALUES)) for kind in ("value", "first", "second"))
        return (*topics, *values, *first, *second, "other", "right", "wrong", "abstained")

    def begin(self, key: jax.Array, params: RetrievalParams) -> RetrievalState:
        topic_key, fact_key, zero_key, rest_key, miss_key, which_key = jax.random.split(key, 6)
        zero = jax.random.bernoulli(zero_key, params.skew)
        answer = jnp.where(zero, 0, jax.random.randint(rest_key, (), 1, VALUES))
        first = jax.random.randint(fact_key, (), 0, VALUES)
        misses = jax.random.bernoulli(miss_key, params.noise, (_TURNS,))
        return RetrievalState(
            topic=jax.random.randint(topic_key, (), 0, TOPICS),
            facts=jnp.stack([first, (answer - first) % VALUES]),
            missed=jnp.where(misses, jax.random.randint(which_key, (_TURNS,), 1, 3), 0),
            queries=jnp.int32(0),
            read=jnp.uint32(0),
            right=jnp.bool_(False),
        )

    def task(self, state: RetrievalState) -> jax.Array:
        """The topic of the question."""
        return (token_of(self, "topic_0") + state.topic)[None]

    def available(self, state: RetrievalState) -> None:
        del state

    def call(self, state: RetrievalState, operation: jax.Array, argument: jax.Array, params: RetrievalParams) -> Outcome:
        del params
        queries, wide = operation == _QUERY, operation == _QUERY_ALL
        asks, answers, abstains = queries | wide, operation == _ANSWER, operation == _ABSTAIN
        missed = jnp.sum(jnp.where(jnp.arange(_TURNS) == state.queries, state.missed, 0), dtype=jnp.int32)
        # of the four documents that start with the topic's: three are shown, in their order
        shown = jnp.stack([(missed == 1).astype(jnp.int32), 1 + (missed > 0), 2 + (missed > 0)])  # [3]
        document = (2 * argument + shown) % DOCUMENTS  # [3]
        found = jnp.where(wide, _bits(2 * state.topic, WIDE), jnp.sum(_bits(document, 1), dtype=jnp.uint32))
        read = state.read | jnp.where(asks, found, jnp.uint32(0))
        right = answers & (argument == jnp.sum(state.facts) % VALUES)
        relevant, count = self._relevant(state._replace(read=read)), _count(read)
        ends = answers | abstains

        says = jnp.where(wide, jnp.arange(3), (document - 2 * state.topic) % DOCUMENTS)  # [3], 0 and 1 are what is asked for
        first, second, other = (token_of(self, word) for word in ("first_0", "second_0", "other"))
        told = jnp.where(says == 0, first + state.facts[0], jnp.where(says == 1, second + state.facts[1], other))
        verdict = jnp.where(right, token_of(self, "right"), token_of(self, "wrong"))
        verdict = jnp.where(abstains, token_of(self, "abstained"), verdict)
        return Outcome(
            state=state._replace(queries=state.queries + asks, read=read, right=state.right | right),
            reply=jnp.where(asks, told, jnp.where(jnp.arange(3) == 0, verdict, 0)).astype(jnp.int32),
            amounts={
                "correct": right.astype(jnp.float32),
                "wrong": (answers & ~right).astype(jnp.float32),
                "recall": jnp.where(ends, relevant / 2, 0.0),
                "precision": jnp.where(ends, relevant / jnp.maximum(count, 1), 0.0),
                "calls": asks.astype(jnp.float32),
            },
            terminated=ends,
            error=jnp.bool_(False),
            redundant=asks & (read == state.read),
        )

    def performance(self, state: RetrievalState) -> jax.Array:
        """Right, and because of the documents: both were read, and no more than four."""
        grounded = (self._relevant(state) == 2) & (_count(state.read) <= ENOUGH)
        return (state.right & grounded).astype(jnp.float32)

    def scripted(self, script: str, key: jax.Array, state: RetrievalState) -> tuple[jax.Array, jax.Array]:
        """optimal: asks until both are there. sft: and once more, or about something else. hack: reads sixteen documents."""
        complete = self._relevant(state) == 2
        if script == "hack":
            operation, topic = jnp.where(complete, _ANSWER, _QUERY_ALL), state.topic
        else:
            operation, topic = jnp.where(complete, _ANSWER, _QUERY), state.topic
        if script == "sft":
            draw, topic_draw = jax.random.uniform(key, (2,))
            strays = draw < STRAYS
            operation = jnp.where(draw < STRAYS + REPEATS, _QUERY, operation)
            topic = jnp.where(strays, (topic_draw * TOPICS).astype(jnp.int32), topic)
        answer = jnp.sum(state.facts) % VALUES
        argument = jnp.where(operation == _ANSWER, answer, jnp.where(operation == _QUERY, topic, 0))
        return operation.astype(jnp.int32), argument.astype(jnp.int32)

    def _relevant(self, state: RetrievalState) -> jax.Array:
        """Documents of the question that were read, int32."""
        return _count(state.read & _bits(2 * state.topic, 2))


def _bits(first: jax.Array, count: int) -> jax.Array:
    """A bit for each of so many documents, the first after the last, uint32."""
    start, run = first.astype(jnp.uint32), jnp.uint32(2**count - 1)
    wrapped = jnp.where(start == 0, jnp.uint32(0), run >> ((DOCUMENTS - start) % DOCUMENTS))
    return (run << start) | wrapped


def _count(bits: jax.Array) -> jax.Array:
    return jax.lax.population_count(bits).astype(jnp.int32)


def retrieval(*, turn: Turn = "single", mask: bool = False, window: int | None = None) -> ToolEnv:
    """Answer from two documents, without reading all.

    Args:
      turn: what an action is: a whole call (single), or a word of it (pair).
      mask: whether observations hold action_mask.
      window: tokens of the episode that are shown; unset, only what the last action added.
    """
    return ToolEnv(Retrieval(), turn, mask, window)
