"""Which tools to call, and how few calls will do: `ToolSelect-v0`.

The task names facts that are to be known before the answer. Whoever calls has to log in, then look the customer up; `get` tells
one fact, `pair` two that belong together, `bundle` (an option) half of all. Facts are needed in whole pairs, so `2 + m / 2 + 1`
calls do for `m` facts: 5 to 7, and with `bundle` 4.
"""

from dataclasses import dataclass
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs.tools.base import Operation, Outcome, ToolEnv, ToolParams, Turn, at, token_of

FACTS = 8
REPEATS, PAIRS = 0.2, 0.1  # shares of the demonstrations' calls that were made before, and that tell two facts
_GET, _PAIR, _BUNDLE = 2, 3, 4  # operations; 0 logs in, 1 looks up, the last answers


@flax.struct.dataclass
class ToolSelectParams(ToolParams):
    """Traced settings.

    Attributes:
      outcome_weight: for the answer, 1 if all facts are known, -1 if not.
      tool_weight: for a call that tells a needed fact, known or not.
      arguments_weight: for one that tells needed facts alone.
      facts_weight: for each needed fact that was not known before.
    """

    max_steps: ArrayLike = np.int32(24)
    outcome_weight: ArrayLike = np.float32(1.0)
    tool_weight: ArrayLike = np.float32(0.0)
    arguments_weight: ArrayLike = np.float32(0.0)
    facts_weight: ArrayLike = np.float32(0.0)


class ToolSelectState(NamedTuple):
    needed: jax.Array  # bool [FACTS]
    known: jax.Array  # bool [FACTS]
    logged_in: jax.Array  # bool
    looked_up: jax.Array  # bool
    answered: jax.Array  # bool


@dataclass(frozen=True)
class ToolSelect:
    """The rules.

    Attributes:
      bundle: whether one call can tell half of all facts; then exactly such a half is needed.
    """

    bundle: bool = False
    name = "ToolSelect-v0"
    components = ("outcome", "tool", "arguments", "facts")
    task_length = FACTS
    reply_length = 1
    max_turns = 24
    default_params = ToolSelectParams()
    probabilities = ()

    @property
    def operations(self) -> tuple[Operation, ...]:
        pairs = tuple(f"pair_{i}" for i in range(FACTS // 2))
        return (
            Operation("login", latency=200),
            Operation("lookup", latency=150),
            Operation("get", self.words[:FACTS], latency=100, cacheable=True),
            Operation("pair", pairs, latency=120, cacheable=True),
            *([Operation("bundle", ("first_half", "second_half"), latency=150, cacheable=True)] if self.bundle else []),
            Operation("answer", latency=50),
        )

    @property
    def words(self) -> tuple[str, ...]:
        facts, pairs = (tuple(f"{kind}_{i}" for i in range(n)) for kind, n in (("fact", FACTS), ("pair", FACTS // 2)))
        halves = ("first_half", "second_half") if self.bundle else ()
        return (*facts, *pairs, *halves, "ok", "nothing_new", "not_logged_in", "no_customer", "right", "wrong")

    def begin(self, key: jax.Array, params: ToolSelectParams) -> ToolSelectState:
        del params
        count_key, order_key = jax.random.split(key)
        pairs = jnp.arange(FACTS // 2)
        if self.bundle:
            needed_pairs = pairs // 2 == jax.random.randint(count_key, (), 0, 2)
        else:
            count = jax.random.randint(count_key, (), 2, FACTS // 2 + 1)
            needed_pairs = jax.random.permutation(order_key, FACTS // 2) < count
        no = jnp.bool_(False)
        return ToolSelectState(jnp.repeat(needed_pairs, 2), jnp.zeros(FACTS, bool), no, no, no)

    def task(self, state: ToolSelectState) -> jax.Array:
        """The facts that are needed, in order."""
        first = token_of(self, "fact_0")
        place = jnp.cumsum(state.needed) - 1
        lands = state.needed & (place == jnp.arange(FACTS)[:, None])
        return jnp.sum(jnp.where(lands, first + jnp.arange(FACTS), 0), axis=1, dtype=jnp.int32)

    def available(self, state: ToolSelectState) -> None:
        del state

    def call(self, state: ToolSelectState, operation: jax.Array, argument: jax.Array, params: ToolSelectParams) -> Outcome:
        del params
        answer = len(self.operations) - 1
        tells = (operation >= _GET) & (operation < answer)
        told = at(self._told, operation)[argument]  # [FACTS]
        known = state.known | (told & tells & state.looked_up)
        new = known & ~state.known
        served = tells & state.looked_up & jnp.any(told & state.needed)
        error = (operation > 0) & (operation < answer) & ~(state.logged_in & ((operation == 1) | state.looked_up))
        complete = jnp.all(state.known | ~state.needed)
        answers = operation == answer
        brings = ((operation == 0) & ~state.logged_in) | ((operation == 1) & ~state.looked_up) | jnp.any(new & state.needed)
        reached = ToolSelectState(
            needed=state.needed,
            known=known,
            logged_in=state.logged_in | (operation == 0),
            looked_up=state.looked_up | ((operation == 1) & state.logged_in),
            answered=state.answered | (answers & complete),
        )
        said = jnp.where(brings, self._word("ok"), self._word("nothing_new"))
        said = jnp.where(error, jnp.where(state.logged_in, self._word("no_customer"), self._word("not_logged_in")), said)
        said = jnp.where(answers, jnp.where(complete, self._word("right"), self._word("wrong")), said)
        return Outcome(
            state=reached,
            reply=said[None],
            amounts={
                "outcome": jnp.where(answers, jnp.where(complete, 1.0, -1.0), 0.0),
                "tool": served.astype(jnp.float32),
                "arguments": (served & jnp.all(state.needed | ~told)).astype(jnp.float32),
                "facts": jnp.sum(new & state.needed, dtype=jnp.float32),
            },
            terminated=answers,
            error=error,
            redundant=~answers & ~error & ~brings,
        )

    def performance(self, state: ToolSelectState) -> jax.Array:
        return state.answered.astype(jnp.float32)

    def scripted(self, script: str, key: jax.Array, state: ToolSelectState) -> tuple[jax.Array, jax.Array]:
        """optimal: pairs, or a bundle. sft: single facts, seldom pairs, some calls once more. hack: one fact over and over."""
        missing = state.needed & ~state.known
        answer = len(self.operations) - 1
        widest = {"optimal": _BUNDLE if self.bundle else _PAIR, "sft": _GET, "hack": _GET}[script]
        size = 2 ** (widest - _GET)  # facts a call
        fact = jnp.argmax(state.needed if script == "hack" else missing)
        finished = jnp.bool_(False) if script == "hack" else ~jnp.any(missing)
        operation = jnp.where(~state.logged_in, 0, jnp.where(~state.looked_up, 1, jnp.where(finished, answer, widest)))
        argument = jnp.where(operation == widest, fact // size, 0)
        if script == "sft":
            again_key, what_key, pair_key = jax.random.split(key, 3)
            in_pairs = (operation == _GET) & jax.random.bernoulli(pair_key, PAIRS)
            operation, argument = jnp.where(in_pairs, _PAIR, operation), jnp.where(in_pairs, fact // 2, argument)
            seen = state.known & state.needed
            again = jax.random.bernoulli(again_key, REPEATS) & jnp.any(seen)
            known_fact = jnp.argmax(jnp.where(seen, jax.random.uniform(what_key, (FACTS,)), -1.0))
            operation, argument = jnp.where(again, _GET, operation), jnp.where(again, known_fact, argument)
        return operation.astype(jnp.int32), argument.astype(jnp.int32)

    @property
    def _told(self) -> np.ndarray:
        """The facts that a call tells, bool [operations, arguments, FACTS]."""
        told = np.zeros((len(self.operations), FACTS, FACTS), bool)
        for operation in range(_GET, len(self.operations) - 1):
            size = 2 ** (operation - _GET)
            for argument in range(FACTS // size):
                told[operation, argument, argument * size : (argument + 1) * size] = True
        return told

    def _word(self, word: str) -> int:
        return token_of(self, word)


def tool_select(*, turn: Turn = "single", mask: bool = False, window: int | None = None, bundle: bool = False) -> ToolEnv:
    """Tell needed facts with few calls.

    Args:
      turn: what an action is: a whole call (single), or a word of it (pair).
      mask: whether observations hold action_mask.
      window: tokens of the episode that are shown; unset, only what the last action added.
      bundle: whether one call can tell half of all facts.
    """
    return ToolEnv(ToolSelect(bundle), turn, mask, window)
