"""Worlds whose actions are tool calls: what they have in common.

A `World` holds the rules of one: its operations, its task, and what a call does. `ToolEnv` makes an environment of it: it reads
actions, counts what goes wrong, keeps simulated time, adds the reward up and shows the agent what happened as tokens.

Letters: `A` calls (an operation with an argument, or one without), `C` components of the reward, `K` tokens a step, `V` words.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs.base import StepOutput, cast_param
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, MultiDiscrete, PyTree, Space, check_action

PAD, INVALID, FIRST_WORD = 0, 1, 2  # tokens: two that every world has, then operations, then the world's words
COMMON_COMPONENTS = ("redundant", "loop", "invalid", "step")
LOOP = 3  # equal calls one after the other that make a loop


Turn = Literal["single", "pair"]


class Operation(NamedTuple):
    """A tool, or one of its functions.

    Attributes:
      name: a word.
      arguments: the words that it takes one of; none if it takes no argument.
      latency: of a call, in simulated milliseconds.
      cacheable: whether after an answer, not an error, an equal call in the episode is bound to bring nothing else.
    """

    name: str
    arguments: tuple[str, ...] = ()
    latency: int = 100
    cacheable: bool = False


class Outcome(NamedTuple):
    """What a call did."""

    state: PyTree
    reply: jax.Array  # [R] int32 tokens, PAD after the last
    amounts: dict[str, jax.Array]  # float32, of the world's components; weighted by the params
    terminated: jax.Array  # bool
    error: jax.Array  # bool, the tool answered with an error
    redundant: jax.Array  # bool, the call brought nothing new


class World(Protocol):
    """The rules of a world: hashable, without state. Arrays are those of one episode."""

    @property
    def name(self) -> str:
        """Registry id."""
        ...

    @property
    def operations(self) -> tuple[Operation, ...]: ...

    @property
    def words(self) -> tuple[str, ...]:
        """What tasks and replies are made of, and arguments: the vocabulary without the operations' names."""
        ...

    @property
    def components(self) -> tuple[str, ...]:
        """Of the reward, beside `COMMON_COMPONENTS`; the params have a `NAME_weight` for each."""
        ...

    @property
    def task_length(self) -> int:
        """Tokens of the longest task."""
        ...

    @property
    def reply_length(self) -> int:
        """R, tokens of the longest reply."""
        ...

    @property
    def max_turns(self) -> int:
        """Bound of an episode, and its length unless the params say less."""
        ...

    @property
    def default_params(self) -> Any:
        """A `ToolParams` with a `NAME_weight` for each component and whatever else may vary."""
        ...

    @property
    def probabilities(self) -> tuple[str, ...]:
        """Names of the params that are probabilities."""
        ...

    def begin(self, key: jax.Array, params: Any) -> PyTree:
        """The state of a new task."""
        ...

    def task(self, state: PyTree) -> jax.Array:
        """The task in tokens, int32 [task_length], PAD after the last."""
        ...

    def available(self, state: PyTree) -> jax.Array | None:
        """Which calls may be made, bool [A]; None if always all."""
        ...

    def call(self, state: PyTree, operation: jax.Array, argument: jax.Array, params: Any) -> Outcome:
        """Makes a call. Operation and argument are numbers, both int32; the argument is 0 where there is none."""
        ...

    def performance(self, state: PyTree) -> jax.Array:
        """The true objective R* of an episode that ends here, float32, 1 for a success. No learner sees it."""
        ...

    def scripted(self, script: str, key: jax.Array, state: PyTree) -> tuple[jax.Array, jax.Array]:
        """The next operation and argument of one of `SCRIPTS`, which may look at the state."""
        ...


SCRIPTS = ("optimal", "sft", "hack", "random")


@flax.struct.dataclass
class ToolParams:
    """Traced settings of every world; weights are paid for each amount of a component.

    Attributes:
      max_steps: turns until the episode is truncated, int32.
      cache: whether a call that can only bring again what an equal one brought is answered at no simulated time.
      redundant_weight: for a call that brought nothing new.
      loop_weight: for a call made for the third time or more without another in between.
      invalid_weight: for an action that means nothing, or nothing here.
      step_weight: for every turn.

    `ranges` holds the least and the greatest value of those of a world that are bounded otherwise than as probabilities.
    """

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    max_steps: ArrayLike
    cache: ArrayLike = np.bool_(False)
    redundant_weight: ArrayLike = np.float32(-0.1)
    loop_weight: ArrayLike = np.float32(-0.5)
    invalid_weight: ArrayLike = np.float32(-0.1)
    step_weight: ArrayLike = np.float32(-0.02)


class Totals(NamedTuple):
    """Of an episode so far, int32."""

    turns: jax.Array
    invalid: jax.Array  # turns that were no call, or one that was not available
    redundant: jax.Array  # calls that brought nothing new
    errors: jax.Array  # calls that a tool answered with an error
    cache_hits: jax.Array  # calls that the cache answered
    latency: jax.Array  # simulated milliseconds
    latency_uncached: jax.Array  # the same without a cache


class ToolState(NamedTuple):
    world: PyTree
    operation: jax.Array  # int32, waits for its argument; -1 if none does
    last_call: jax.Array  # int32, -1 before the first
    repeats: jax.Array  # int32, how often it was made without another in between
    called: jax.Array  # bool [A], answered without an error in this episode
    totals: Totals
    tokens: jax.Array  # int32, the last [K], or [L] with a window
    num_tokens: jax.Array  # int32


@dataclass(frozen=True)
class ToolEnv:
    """A world as an environment.

    Observations are `tokens` (int32 [K]: the task at first, later what the last action added: operation, argument, reply) and
    `num_tokens`, how many of them count. With a window, `tokens` are the last L of the episode, the newest at the end.

    `info` holds `success`, `performance` (R*), `components` (float32 [C], weighted: they add up to the reward) and `totals`.

    Attributes:
      world: the rules.
      turn: `single`, an action is a whole call; `pair`, an action is a word: first an operation, then its argument if it takes
        one. Actions that mean nothing, or nothing here, do nothing, cost a turn and are counted.
      mask: whether observations hold `action_mask`, the actions that mean something.
      window: L; None for what was added alone.
    """

    world: World
    turn: Turn = "single"
    mask: bool = False
    window: int | None = None

    def validate(self) -> None:
        """Raises ValueError that names the wrong field."""
        if self.turn not in ("single", "pair"):
            raise ValueError(f"turn: expected single or pair, got {self.turn!r}")
        if self.window is not None and self.window < self._tokens_a_step:
            raise ValueError(f"window: expected at least {self._tokens_a_step} tokens, got {self.window}")

    def check_params(self, params: Any) -> None:
        """Raises ValueError that names a param without a meaning; concrete ones only."""
        known = type(self.world.default_params)
        if not isinstance(params, known):
            raise ValueError(f"params: expected {known.__name__}, got {type(params).__name__}")
        for field in dataclasses.fields(params):
            cast_param(field.name, getattr(params, field.name), getattr(self.world.default_params, field.name))
        if not 1 <= params.max_steps <= self.world.max_turns:
            raise ValueError(f"params.max_steps: expected 1 to {self.world.max_turns}, got {params.max_steps}")
        for name in self.world.probabilities:
            if not 0.0 <= getattr(params, name) <= 1.0:
                raise ValueError(f"params.{name}: expected a probability, got {getattr(params, name)}")
        for name, (low, high) in params.ranges.items():
            if not low <= getattr(params, name) <= high:
                raise ValueError(f"params.{name}: expected {low} to {high}, got {getattr(params, name)}")

    @cached_property
    def calls(self) -> "Calls":
        """Every call, numbered."""
        return Calls(self.world.operations)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The words that tokens stand for: V of them."""
        return ("", "invalid", *(operation.name for operation in self.world.operations), *self.world.words)

    @property
    def num_actions(self) -> int:
        """A, or the largest number of words to choose from."""
        if self.turn == "single":
            return self.calls.count
        return max(len(self.world.operations), int(self.calls.num_arguments.max()))

    @property
    def max_tokens(self) -> int:
        """Bound of the tokens of an episode."""
        return self.world.task_length + self.world.max_turns * (2 + self.world.reply_length)

    @property
    def spec(self) -> EnvSpec:
        size = self.window or self._tokens_a_step
        fields: tuple[tuple[str, Space], ...] = (
            ("tokens", MultiDiscrete((len(self.vocabulary),) * size)),
            ("num_tokens", Discrete(size + 1)),
        )
        if self.mask:
            fields = (*fields, ("action_mask", Box(0, 1, (self.num_actions,), "bool")))
        max_steps = self.world.max_turns * (2 if self.turn == "pair" else 1)
        max_tokens = self.max_tokens if self.window is None else None  # of which a window shows many again
        return EnvSpec(self.world.name, DictSpace(fields), Discrete(self.num_actions), max_steps, self._components, max_tokens)

    def reset(self, key: jax.Array, params: Any) -> tuple[dict[str, jax.Array], ToolState]:
        world, zero = self.world.begin(key, params), jnp.int32(0)
        state = ToolState(
            world=world,
            operation=jnp.int32(-1),
            last_call=jnp.int32(-1),
            repeats=zero,
            called=jnp.zeros(self.calls.count, bool),
            totals=Totals(*[zero] * len(Totals._fields)),
            tokens=jnp.zeros(self.window or self._tokens_a_step, jnp.int32),
            num_tokens=zero,
        )
        state = self._appended(state, jnp.asarray(self.world.task(world), jnp.int32))
        return self.observe(state), state

    def step(self, key: jax.Array, state: ToolState, action: jax.Array, params: Any) -> StepOutput:
        del key  # whatever is random was drawn with the task
        check_action(self.spec.action, action)
        operation, argument, complete, valid = self._read(state, jnp.asarray(action, jnp.int32))
        call = self.calls.number(operation, argument)
        outcome = self.world.call(state.world, operation, argument, params)
        made = complete & valid
        repeats = jnp.where(call == state.last_call, state.repeats + 1, 1)
        counts = {
            "redundant": made & outcome.redundant,
            "loop": made & (repeats >= LOOP),
            "invalid": complete & ~valid,
            "step": complete,
        }
        amounts = {name: jnp.where(made, amount, 0.0) for name, amount in outcome.amounts.items()} | counts
        weights = jnp.stack([jnp.asarray(getattr(params, f"{name}_weight"), jnp.float32) for name in self._components])
        components = weights * jnp.stack([jnp.asarray(amounts[name], jnp.float32) for name in self._components])
        latency = at(self.calls.latency, operation)
        hit = made & at(self.calls.cacheable, operation) & state.called[call] & params.cache
        totals = Totals(
            turns=state.totals.turns + complete,
            invalid=state.totals.invalid + counts["invalid"],
            redundant=state.totals.redundant + counts["redundant"],
            errors=state.totals.errors + (made & outcome.error),
            cache_hits=state.totals.cache_hits + hit,
            latency=state.totals.latency + jnp.where(made & ~hit, latency, 0),
            latency_uncached=state.totals.latency_uncached + jnp.where(made, latency, 0),
        )
        echo = self._echo(state, operation, argument, complete, valid)
        said = jnp.where(complete, jnp.where(valid, outcome.reply, self._invalid_reply), PAD)
        reached = ToolState(
            world=jax.tree.map(lambda new, old: jnp.where(made, new, old), outcome.state, state.world),
            operation=jnp.where(complete, -1, operation),
            last_call=jnp.where(made, call, state.last_call),
            repeats=jnp.where(made, repeats, state.repeats),
            called=state.called | (made & ~outcome.error & (jnp.arange(self.calls.count) == call)),
            totals=totals,
            tokens=state.tokens,
            num_tokens=state.num_tokens,
        )
        reached = self._appended(reached, _compacted(jnp.concatenate([echo, said])))
        terminated = made & outcome.terminated
        truncated = totals.turns >= jnp.minimum(params.max_steps, self.world.max_turns)
        performance = jnp.asarray(self.world.performance(reached.world), jnp.float32)
        success = performance >= 1.0
        info = {
            "success": success,
            "performance": performance,
            "components": components,
            "totals": {
                **totals._asdict(),
                "success_turns": jnp.where(success, totals.turns, 0),
                "episodes_with_error": (totals.errors > 0).astype(jnp.int32),
                "recoveries": (success & (totals.errors > 0)).astype(jnp.int32),
            },
        }
        return self.observe(reached), reached, components.sum(), terminated, truncated, info

    def observe(self, state: ToolState) -> dict[str, jax.Array]:
        """What the last action added, or the window."""
        observation = {"tokens": state.tokens, "num_tokens": state.num_tokens}
        return observation | ({"action_mask": self.action_mask(state)} if self.mask else {})

    def situation(self, state: ToolState) -> tuple[PyTree, jax.Array]:
        """What the world is in, and the operation that waits for its argument: the state without what is only counted."""
        return state.world, state.operation

    def action_mask(self, state: ToolState) -> jax.Array:
        """The actions that mean something here, bool."""
        available = self._available(state)
        if self.turn == "single":
            return available
        words = np.arange(self.num_actions)
        of_operation = jnp.zeros(len(self.world.operations), bool).at[self.calls.operation].max(available)
        operations = jnp.zeros(self.num_actions, bool).at[: of_operation.size].set(of_operation)
        pending = jnp.maximum(state.operation, 0)
        calls = jnp.clip(at(self.calls.first, pending) + words, 0, self.calls.count - 1)
        arguments = (words < at(self.calls.num_arguments, pending)) & available[calls]
        return jnp.where(state.operation >= 0, arguments, operations)

    def action_of(self, state: ToolState, operation: jax.Array, argument: jax.Array) -> jax.Array:
        """The action that comes next on the way to a call."""
        if self.turn == "single":
            return self.calls.number(operation, argument)
        return jnp.where(state.operation >= 0, argument, operation)

    @property
    def _components(self) -> tuple[str, ...]:
        return (*self.world.components, *COMMON_COMPONENTS)

    @property
    def _tokens_a_step(self) -> int:
        """K."""
        return max(self.world.task_length, 2 + self.world.reply_length)

    @property
    def _invalid_reply(self) -> np.ndarray:
        return np.array([INVALID] + [PAD] * (self.world.reply_length - 1), np.int32)

    def _available(self, state: ToolState) -> jax.Array:
        available = self.world.available(state.world)
        return jnp.ones(self.calls.count, bool) if available is None else available

    def _read(self, state: ToolState, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Operation and argument that an action stands for, whether it completes a turn, and whether it means something."""
        calls = self.calls
        inside = (action >= 0) & (action < self.num_actions)
        if self.turn == "single":
            call = jnp.clip(action, 0, calls.count - 1)
            operation, argument = at(calls.operation, call), at(calls.argument, call)
            return operation, argument, jnp.bool_(True), inside & self._available(state)[call]
        waits = state.operation >= 0
        operation = jnp.where(waits, state.operation, jnp.clip(action, 0, len(self.world.operations) - 1))
        num_arguments = at(calls.num_arguments, operation)
        argument = jnp.where(waits, jnp.clip(action, 0, jnp.maximum(num_arguments - 1, 0)), 0)
        is_operation = inside & (action < len(self.world.operations))
        available = self._available(state)
        offered = jnp.any(available & (calls.operation == operation))  # with any argument
        complete = waits | ~is_operation | (num_arguments == 0) | ~offered
        allowed = inside & (action < num_arguments) & available[calls.number(operation, argument)]
        return operation, argument, complete, jnp.where(waits, allowed, is_operation & offered)

    def _echo(
        self, state: ToolState, operation: jax.Array, argument: jax.Array, complete: jax.Array, valid: jax.Array
    ) -> jax.Array:
        """The words of the action, int32 [2]; nothing of one that means nothing."""
        call = self.calls.number(operation, argument)
        word = jnp.where(state.operation >= 0, PAD, FIRST_WORD + operation)  # else said when it was chosen
        argument_word = jnp.where(complete, at(self._argument_tokens, call), PAD)
        return jnp.where(valid | ~complete, jnp.stack([word, argument_word]), PAD)

    @cached_property
    def _argument_tokens(self) -> np.ndarray:
        """Of each call, int32 [A]; PAD where it has none."""
        names = [operation.arguments[a] if operation.arguments else None for operation, a in self._each_call()]
        return np.array([PAD if name is None else self.vocabulary.index(name) for name in names], np.int32)

    def _each_call(self) -> Iterator[tuple[Operation, int]]:
        return ((self.world.operations[o], int(a)) for o, a in zip(self.calls.operation, self.calls.argument, strict=True))

    def _appended(self, state: ToolState, tokens: jax.Array) -> ToolState:
        """With new tokens [n], PAD after the last."""
        count = jnp.sum(tokens != PAD, dtype=jnp.int32)
        if self.window is None:
            padded = jnp.zeros(self._tokens_a_step, jnp.int32).at[: tokens.size].set(tokens)
            return state._replace(tokens=padded, num_tokens=count)
        shifted = jax.lax.dynamic_slice(jnp.concatenate([state.tokens, tokens]), (count,), (self.window,))
        return state._replace(tokens=shifted, num_tokens=jnp.minimum(state.num_tokens + count, self.window))


class Calls:
    """The calls of a world, numbered: every operation with each of its arguments, or without one. Tables are constants."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        sizes = [max(1, len(operation.arguments)) for operation in operations]
        self.count = sum(sizes)
        self.first = np.cumsum([0, *sizes[:-1]]).astype(np.int32)  # call of each operation
        self.operation = np.repeat(np.arange(len(operations)), sizes).astype(np.int32)  # of each call
        self.argument = (np.arange(self.count) - self.first[self.operation]).astype(np.int32)
        self.num_arguments = np.array([len(operation.arguments) for operation in operations], np.int32)
        self.latency = np.array([operation.latency for operation in operations], np.int32)
        self.cacheable = np.array([operation.cacheable for operation in operations])

    def number(self, operation: jax.Array, argument: jax.Array) -> jax.Array:
        """Of the call, int32."""
        return at(self.first, operation) + argument


def token_of(world: World, word: str) -> int:
    """The token that stands for a word of the world's own."""
    return FIRST_WORD + len(world.operations) + world.words.index(word)


def at(table: np.ndarray, index: jax.Array) -> jax.Array:
    """An entry of a constant table; the index must be in range."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def first_of(holds: jax.Array) -> jax.Array:
    """Place of the first True of [n], n if there is none."""
    return jnp.min(jnp.where(holds, jnp.arange(holds.size), holds.size))


def _compacted(tokens: jax.Array) -> jax.Array:
    """The tokens [n] that are not PAD, in order, then PAD. Compared, not scattered: n is small."""
    counts = tokens != PAD
    place = jnp.cumsum(counts) - 1
    lands = counts & (place == jnp.arange(tokens.size)[:, None])  # [to, from]
    return jnp.sum(jnp.where(lands, tokens, 0), axis=1, dtype=jnp.int32)
