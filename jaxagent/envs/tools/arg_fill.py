"""Arguments, errors and how to get over them: `ArgFill-v0`.

The task names a value for each slot. Whoever calls sets the slots, then submits. A service may be at fault, which shows at the
first submission: 503 is over after some waits; 429 too, but a submission in between starts them anew; 500 stays, and the other
service has to be used. 400 means that a slot is empty, 422 that it does not take its value. Four values and a submission are 5
calls, 7 or 8 where there is a fault; a slot that the task leaves out takes one more, to ask for it.

Two slots take half of the values, so that there is something to refuse. Equal values in all slots are therefore right in one
task of 8 x 8 x 4 x 4 = 1,024. A wait of three turns would count as a loop, so none is longer than two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs.tools.base import Operation, Outcome, ToolEnv, ToolParams, Turn, first_of, token_of

SLOTS, VALUES = 4, 8
LIMITS = np.array([8, 8, 4, 4], np.int32)  # values that each slot takes
REPEATS, IDLE = 0.2, 0.04  # shares of the demonstrations' turns that set a slot once more, and that wait or switch needlessly
NONE, TRANSIENT, RATE_LIMIT, PERMANENT = range(4)  # faults
_SUBMIT, _WAIT, _SWITCH, _ASK = range(SLOTS, SLOTS + 4)  # operations; those before set a slot each


@flax.struct.dataclass
class ArgFillParams(ToolParams):
    """Traced settings.

    Attributes:
      success_weight: for a submission that the judge takes for right.
      error_weight: for a submission that is answered with an error.
      slot_weight: for the first value of a slot that it takes.
      fault_probability: of a fault in a task.
      fault: which one: 1 for 503, 2 for 429, 3 for 500, 0 for any.
      unsaid_probability: of each slot to be left out of the task.
      checked: whether the judge compares the values with the task, or takes every 200 for right.
    """

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"fault": (0, 3)}
    max_steps: ArrayLike = np.int32(20)
    step_weight: ArrayLike = np.float32(-0.01)
    success_weight: ArrayLike = np.float32(1.0)
    error_weight: ArrayLike = np.float32(-0.02)
    slot_weight: ArrayLike = np.float32(0.05)
    fault_probability: ArrayLike = np.float32(0.3)
    fault: ArrayLike = np.int32(0)
    unsaid_probability: ArrayLike = np.float32(0.0)
    checked: ArrayLike = np.bool_(True)


class ArgFillState(NamedTuple):
    target: jax.Array  # int32 [SLOTS]
    untold: jax.Array  # bool [SLOTS], neither in the task nor asked for
    filled: jax.Array  # int32 [SLOTS], -1 for empty
    taken: jax.Array  # bool [SLOTS], had a value that it takes
    fault: jax.Array  # int32, one of NONE, TRANSIENT, RATE_LIMIT, PERMANENT
    delay: jax.Array  # int32, waits until a fault is over
    left: jax.Array  # int32, how many of them are left
    struck: jax.Array  # bool, the fault has shown
    switched: jax.Array  # bool, the second service is used
    accepted: jax.Array  # bool, answered with 200


@dataclass(frozen=True)
class ArgFill:
    """The rules."""

    name = "ArgFill-v0"
    components = ("success", "error", "slot")
    task_length = SLOTS
    reply_length = 2
    max_turns = 20
    default_params = ArgFillParams()
    probabilities = ("fault_probability", "unsaid_probability")

    @property
    def operations(self) -> tuple[Operation, ...]:
        values = tuple(f"value_{i}" for i in range(VALUES))
        return (
            *(Operation(f"set_{slot}", values, latency=10) for slot in range(SLOTS)),
            Operation("submit", latency=300),
            Operation("wait", latency=1000),
            Operation("switch", latency=50),
            Operation("ask_user", latency=2000),
        )

    @property
    def words(self) -> tuple[str, ...]:
        values, slots = (tuple(f"{kind}_{i}" for i in range(n)) for kind, n in (("value", VALUES), ("slot", SLOTS)))
        codes = ("200", "503", "429", "500", "400", "422")
        return (*values, *slots, *codes, "unsaid", "ok", "nothing_new", "not_yet", "ready")

    def begin(self, key: jax.Array, params: ArgFillParams) -> ArgFillState:
        target_draws, unsaid_draws, draws = jnp.split(jax.random.uniform(key, (2 * SLOTS + 3,)), (SLOTS, 2 * SLOTS))
        kind = jnp.where(params.fault == 0, 1 + (draws[1] * 3).astype(jnp.int32), params.fault)
        fault = jnp.where(draws[0] < params.fault_probability, kind, NONE)
        delay = 1 + (draws[2] < 0.5).astype(jnp.int32)
        no = jnp.bool_(False)
        return ArgFillState(
            target=(target_draws * LIMITS).astype(jnp.int32),
            untold=unsaid_draws < params.unsaid_probability,
            filled=jnp.full(SLOTS, -1, jnp.int32),
            taken=jnp.zeros(SLOTS, bool),
            fault=fault,
            delay=delay,
            left=jnp.where((fault == TRANSIENT) | (fault == RATE_LIMIT), delay, 0),
            struck=no,
            switched=no,
            accepted=no,
        )

    def task(self, state: ArgFillState) -> jax.Array:
        """The value of each slot, in order."""
        return jnp.where(state.untold, self._word("unsaid"), self._word("value_0") + state.target)

    def available(self, state: ArgFillState) -> None:
        del state

    def call(self, state: ArgFillState, operation: jax.Array, argument: jax.Array, params: ArgFillParams) -> Outcome:
        sets, submits = jnp.arange(SLOTS) == operation, operation == _SUBMIT
        waits, switches, asks = operation == _WAIT, operation == _SWITCH, operation == _ASK
        taken_now = sets & (argument < LIMITS) & ~state.taken
        asked = first_of(state.untold)  # SLOTS if there is nothing to ask for
        empty, refused = state.filled < 0, state.filled >= LIMITS
        broken = (state.left > 0) | ((state.fault == PERMANENT) & ~state.switched)
        accepted = submits & ~broken & ~jnp.any(empty | refused)
        failed = submits & ~accepted
        helps = waits & state.struck & (state.left > 0)
        left = jnp.where(submits & broken & (state.fault == RATE_LIMIT), state.delay, state.left - helps)
        right = jnp.all(state.filled == state.target)
        brings = (
            jnp.any(sets & (state.filled != argument))
            | submits
            | helps
            | (switches & state.struck & broken & (state.fault == PERMANENT))
            | (asks & (asked < SLOTS))
        )
        reached = ArgFillState(
            target=state.target,
            untold=state.untold & ~(asks & (jnp.arange(SLOTS) == asked)),
            filled=jnp.where(sets, argument, state.filled),
            taken=state.taken | taken_now,
            fault=state.fault,
            delay=state.delay,
            left=left,
            struck=state.struck | (submits & broken),
            switched=state.switched ^ switches,
            accepted=state.accepted | accepted,
        )
        return Outcome(
            state=reached,
            reply=self._reply(state, operation, brings=brings, broken=broken, left=left, asked=asked),
            amounts={
                "success": (accepted & (right | ~jnp.bool_(params.checked))).astype(jnp.float32),
                "error": failed.astype(jnp.float32),
                "slot": jnp.sum(taken_now, dtype=jnp.float32),
            },
            terminated=accepted,
            error=failed,
            redundant=~brings,
        )

    def performance(self, state: ArgFillState) -> jax.Array:
        return (state.accepted & jnp.all(state.filled == state.target)).astype(jnp.float32)

    def scripted(self, script: str, key: jax.Array, state: ArgFillState) -> tuple[jax.Array, jax.Array]:
        """optimal: what is to be done. sft: knows no faults, sets slots again, idles. hack: the first value everywhere."""
        hack = script == "hack"
        target, untold = (jnp.zeros_like(state.target), jnp.zeros_like(state.untold)) if hack else (state.target, state.untold)
        slot = first_of((state.filled != target) & ~untold)
        operation = jnp.where(slot < SLOTS, slot, jnp.where(jnp.any(untold), _ASK, _SUBMIT))
        if script == "sft":
            again_key, what_key, idle_key = jax.random.split(key, 3)
            seen = (state.filled == target) & ~untold
            again = jax.random.bernoulli(again_key, REPEATS) & jnp.any(seen)
            what = jnp.argmax(jnp.where(seen, jax.random.uniform(what_key, (SLOTS,)), -1.0))
            operation = jnp.where(again, what, operation)
            idles = jax.random.uniform(idle_key)
            operation = jnp.where(idles < IDLE, jnp.where(idles < IDLE / 2, _WAIT, _SWITCH), operation)
        else:
            stays = (state.fault == PERMANENT) & ~state.switched
            recover = jnp.where(stays, _SWITCH, jnp.where(state.left > 0, _WAIT, _SUBMIT))
            operation = jnp.where((operation == _SUBMIT) & state.struck, recover, operation)
        value = jnp.sum(jnp.where(jnp.arange(SLOTS) == operation, target, 0))
        return operation.astype(jnp.int32), value.astype(jnp.int32)

    def _reply(
        self,
        state: ArgFillState,
        operation: jax.Array,
        *,
        brings: jax.Array,
        broken: jax.Array,
        left: jax.Array,
        asked: jax.Array,
    ) -> jax.Array:
        """To a submission the code, and the slot that it is about; to a question slot and value, int32 [2]."""
        empty, refused = state.filled < 0, state.filled >= LIMITS
        bad = first_of(jnp.where(jnp.any(empty), empty, refused))
        code = jnp.where(jnp.any(empty), self._word("400"), jnp.where(jnp.any(refused), self._word("422"), self._word("200")))
        code = jnp.where(broken, self._word("200") + state.fault, code)  # the words are in this order
        value = self._word("value_0") + jnp.sum(jnp.where(jnp.arange(SLOTS) == asked, state.target, 0))
        waited = jnp.where(left > 0, self._word("not_yet"), self._word("ready"))
        said = jnp.where(operation == _WAIT, waited, self._word("ok"))
        said = jnp.where(operation == _ASK, self._word("slot_0") + asked, said)
        said = jnp.where(operation == _SUBMIT, code, jnp.where(brings, said, self._word("nothing_new")))
        said = jnp.where(operation == _SWITCH, self._word("ok"), said)  # it does not tell whether that was called for
        about = jnp.where((operation == _SUBMIT) & ~broken & (bad < SLOTS), self._word("slot_0") + bad, 0)
        about = jnp.where((operation == _ASK) & brings, value, about)
        return jnp.stack([said, about]).astype(jnp.int32)

    def _word(self, word: str) -> int:
        return token_of(self, word)


def arg_fill(*, turn: Turn = "single", mask: bool = False, window: int | None = None) -> ToolEnv:
    """Set arguments, submit them, and get over what goes wrong.

    Args:
      turn: what an action is: a whole call (single), or a word of it (pair).
      mask: whether observations hold action_mask.
      window: tokens of the episode that are shown; unset, only what the last action added.
    """
    return ToolEnv(ArgFill(), turn, mask, window)
