"""Ten right actions in order and one reward: `FlightBooking-v0`.

Open the page; type origin, destination and day; search; select an offer, a seat; say who travels; pay; confirm. The task names
what is to be booked, the search shows price and time of each offer. The booking is right if it is what the task asks for, on
the cheapest offer at the right time. A price limit is left out: where there is an offer to take, the cheapest is within it.

An action that does not belong to the page is wrong. A value that does, but is not what the task asks for, is taken like any
other, unless `strict`: then it is wrong as well, and the ten are a combination lock. Whoever takes any of the 18 actions opens
that lock in 0.00008 of the episodes: P(Bin(50, 1/18) >= 10) = 0.00037 holds where no action leads back. Without `strict`, 0.009
confirm something, and one in 6^3 x 4 x 2 = 1,728 of that is right.
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

STAGES, FIELDS, VALUES, OFFERS = 10, 3, 6, 4
REPEATS = 0.2  # share of the demonstrations' turns that hesitate
NOTHING, LOSE_ONE_STAGE, RESET = range(3)  # what a wrong action does
_TYPE, _SELECT, _SEAT, _CONFIRM, _BACK = 1, 3, 4, 7, 8  # operations; 0 opens, 2 searches, 5 names the passenger, 6 pays
_CHOICES = 5  # stages from 1 on that ask for a value: three fields, after the search an offer, and a seat
_CHOICE_STAGES = np.array([1, 2, 3, 5, 6], np.int32)


@flax.struct.dataclass
class FlightBookingParams(ToolParams):
    """Traced settings. By default a right booking is paid, and nothing else.

    Attributes:
      booking_weight: for a confirmed booking that is right.
      milestone_weight: for each stage that is reached for the first time.
      forward_weight: for each stage that is reached, however often.
      potential_weight: for gamma times the stage's tenth after the action less that before; 0 once the episode has terminated.
      gamma: of the potential. One below 1 is exact where an action is a whole call (`single`).
      wrong: what a wrong action does: 0 nothing, 1 loses a stage, 2 leads back to the start.
      strict: whether a value other than the task's is wrong.
      start_stage: stages that are done at the start, rightly. 9 leaves the confirmation, 6 a seat and what follows, 4 the
        search and the choice too, 0 everything. At 5 the offers are not shown: whoever wants to see them has to go back.
    """

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"wrong": (0, 2), "start_stage": (0, STAGES - 1), "gamma": (0, 1)}
    max_steps: ArrayLike = np.int32(50)
    redundant_weight: ArrayLike = np.float32(0.0)
    loop_weight: ArrayLike = np.float32(0.0)
    invalid_weight: ArrayLike = np.float32(0.0)
    step_weight: ArrayLike = np.float32(0.0)
    booking_weight: ArrayLike = np.float32(1.0)
    milestone_weight: ArrayLike = np.float32(0.0)
    forward_weight: ArrayLike = np.float32(0.0)
    potential_weight: ArrayLike = np.float32(0.0)
    gamma: ArrayLike = np.float32(0.99)
    wrong: ArrayLike = np.int32(NOTHING)
    strict: ArrayLike = np.bool_(False)
    start_stage: ArrayLike = np.int32(0)


class FlightBookingState(NamedTuple):
    asked: jax.Array  # int32 [5], right values: origin, destination, day, offer, seat
    chosen: jax.Array  # int32 [5], -1 for none yet
    evening: jax.Array  # bool, the time that the task asks for
    prices: jax.Array  # int32 [OFFERS], ranks
    evenings: jax.Array  # bool [OFFERS]
    stage: jax.Array  # int32, actions of the ten that are done
    furthest: jax.Array  # int32, the latest stage so far
    booked: jax.Array  # bool, confirmed and right


@dataclass(frozen=True)
class FlightBooking:
    """The rules."""

    name = "FlightBooking-v0"
    components = ("booking", "milestone", "forward", "potential")
    task_length = 6
    reply_length = OFFERS
    max_turns = 50
    default_params = FlightBookingParams()
    probabilities = ()

    @property
    def operations(self) -> tuple[Operation, ...]:
        values, offers = (tuple(f"{kind}_{i}" for i in range(n)) for kind, n in (("value", VALUES), ("offer", OFFERS)))
        return (
            Operation("open", latency=300),
            Operation("type", values, latency=50),
            Operation("search", latency=800),
            Operation("select", offers, latency=100),
            Operation("seat", ("window", "aisle"), latency=100),
            Operation("passenger", latency=50),
            Operation("pay", latency=500),
            Operation("confirm", latency=300),
            Operation("back", latency=100),
        )

    @property
    def words(self) -> tuple[str, ...]:
        values, offers, pages = (
            tuple(f"{kind}_{i}" for i in range(n)) for kind, n in (("value", VALUES), ("offer", OFFERS), ("page", STAGES))
        )
        mornings, evenings = (tuple(f"{time}_{i}" for i in range(OFFERS)) for time in ("morning", "evening"))
        return (*values, *offers, "window", "aisle", *pages, *mornings, *evenings, "morning", "evening", "wrong", "booked")

    def begin(self, key: jax.Array, params: FlightBookingParams) -> FlightBookingState:
        draws = jax.random.uniform(key, (FIELDS + 3 + 2 * OFFERS,))
        origin, hop, day, seat, time, match = draws[: FIELDS + 3]
        price_draws, evening_draws = draws[FIELDS + 3 : -OFFERS], draws[-OFFERS:]
        evening = time < 0.5
        evenings = jnp.where(jnp.arange(OFFERS) == _up_to(match, OFFERS), evening, evening_draws < 0.5)
        prices = jnp.sum(price_draws < price_draws[:, None], axis=1, dtype=jnp.int32)  # all different
        cheapest = jnp.min(jnp.where(evenings == evening, prices, OFFERS))
        start = _up_to(origin, VALUES)
        end = (start + 1 + _up_to(hop, VALUES - 1)) % VALUES
        asked = jnp.stack([start, end, _up_to(day, VALUES), first_of(prices == cheapest), _up_to(seat, 2)])
        stage = jnp.asarray(params.start_stage, jnp.int32)
        return FlightBookingState(
            asked=asked,
            chosen=jnp.where(stage > _CHOICE_STAGES, asked, -1),
            evening=evening,
            prices=prices,
            evenings=evenings,
            stage=stage,
            furthest=stage,
            booked=jnp.bool_(False),
        )

    def task(self, state: FlightBookingState) -> jax.Array:
        """Origin, destination, day, time, seat, and the page to start from."""
        fields = self._word("value_0") + state.asked[:FIELDS]
        time = self._word("morning") + state.evening
        return jnp.stack([*fields, time, self._word("window") + state.asked[-1], self._word("page_0") + state.stage])

    def available(self, state: FlightBookingState) -> None:
        del state

    def call(
        self, state: FlightBookingState, operation: jax.Array, argument: jax.Array, params: FlightBookingParams
    ) -> Outcome:
        here = state.stage == _CHOICE_STAGES  # [5]
        fits = (argument == jnp.sum(jnp.where(here, state.asked, 0))) | ~jnp.any(here) | ~jnp.bool_(params.strict)
        forward = (operation == _operation_at(state.stage)) & fits
        back = (operation == _BACK) & (state.stage > 0)
        wrong = ~(forward | back)
        lost = jnp.where(params.wrong == RESET, state.stage, (params.wrong == LOSE_ONE_STAGE) & (state.stage > 0))
        stage = state.stage + forward - back - jnp.where(wrong, lost, 0)
        confirmed = forward & (stage == STAGES)
        chosen = jnp.where(here & forward, argument, state.chosen)
        booked = confirmed & jnp.all(chosen == state.asked)
        after = jnp.where(confirmed, 0, stage).astype(jnp.float32)
        reached = state._replace(
            chosen=chosen,
            stage=stage,
            furthest=jnp.maximum(state.furthest, stage),
            booked=state.booked | booked,
        )
        return Outcome(
            state=reached,
            reply=self._reply(state, operation, stage=stage, forward=forward, wrong=wrong),
            amounts={
                "booking": booked.astype(jnp.float32),
                "milestone": (stage > state.furthest).astype(jnp.float32),
                "forward": forward.astype(jnp.float32),
                "potential": (jnp.float32(params.gamma) * after - state.stage) / STAGES,
            },
            terminated=confirmed,
            error=wrong,
            redundant=forward & (stage <= state.furthest) & jnp.all(chosen == state.chosen),
        )

    def performance(self, state: FlightBookingState) -> jax.Array:
        return state.booked.astype(jnp.float32)

    def scripted(self, script: str, key: jax.Array, state: FlightBookingState) -> tuple[jax.Array, jax.Array]:
        """optimal: the ten, back to what is wrong. sft: types anything at times, or goes back. hack: a page back and forth."""
        if script == "hack":
            return jnp.where(state.stage > 0, _BACK, 0).astype(jnp.int32), jnp.int32(0)
        mistaken = jnp.any((state.chosen != state.asked) & (state.stage > _CHOICE_STAGES))
        here = state.stage == _CHOICE_STAGES
        operation = jnp.where(mistaken, _BACK, _operation_at(state.stage))
        argument = jnp.sum(jnp.where(here, state.asked, 0))
        if script == "sft":
            again_key, what_key = jax.random.split(key)
            again = jax.random.bernoulli(again_key, REPEATS)
            types = operation == _TYPE
            argument = jnp.where(again & types, jax.random.randint(what_key, (), 0, VALUES), argument)
            operation = jnp.where(again & ~types & (state.stage > 0), _BACK, operation)
        return operation.astype(jnp.int32), jnp.where(operation == _BACK, 0, argument).astype(jnp.int32)

    def _reply(
        self, state: FlightBookingState, operation: jax.Array, *, stage: jax.Array, forward: jax.Array, wrong: jax.Array
    ) -> jax.Array:
        """The page, or what the search found: a word for time and rank of the price of each offer, int32 [OFFERS]."""
        page = jnp.where(stage == STAGES, self._word("booked"), self._word("page_0") + stage)
        place = np.arange(OFFERS)
        plain = jnp.where(wrong & (place == 0), self._word("wrong"), jnp.where(place == wrong, page, 0))
        offers = jnp.where(state.evenings, self._word("evening_0"), self._word("morning_0")) + state.prices
        return jnp.where(forward & (operation == 2), offers, plain)

    def _word(self, word: str) -> int:
        return token_of(self, word)


def _operation_at(stage: jax.Array) -> jax.Array:
    """What is to be done at a stage: 0, three times 1, then 2 to 7."""
    return jnp.where(stage <= 1, stage, jnp.maximum(stage - 2, 1))


def _up_to(draw: jax.Array, count: int) -> jax.Array:
    """A number from 0 to count - 1, int32, from one in [0, 1)."""
    return (draw * count).astype(jnp.int32)


def flight_booking(*, turn: Turn = "single", mask: bool = False, window: int | None = None) -> ToolEnv:
    """Book a flight in ten steps.

    Args:
      turn: what an action is: a whole call (single), or a word of it (pair).
      mask: whether observations hold action_mask.
      window: tokens of the episode that are shown; unset, only what the last action added.
    """
    return ToolEnv(FlightBooking(), turn, mask, window)
