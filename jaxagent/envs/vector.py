"""Many environments at once: stepping, resetting, and where the levels come from.

Letters: `B` environments, `P` levels in the pool.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs.base import Environment, Info, Observable, Rejecting, zeros_like
from jaxagent.ops.compact import chunk_size, over_rows, put_rows, take_rows
from jaxagent.types import PyTree, check_action, is_count

ResetMode = Literal["same_step", "next_step", "none"]
LevelSource = Literal["pool", "fresh", "fixed"]


class Levels(NamedTuple):
    """Levels ready to be played: what `env.reset` returned for each. Leaves are `[P, ...]`."""

    observation: PyTree  # None where the environment makes observations from its state
    env_state: PyTree


class VectorState(NamedTuple):
    env_state: PyTree  # [B, ...]
    observation: PyTree  # [B, ...]; None where the environment makes it from its state: see `VectorEnv.observe`
    is_first: jax.Array  # [B] bool, what the policy sees next is the first of an episode
    ended: jax.Array  # [B] bool, the row's episode is over (always False in mode `same_step`)
    levels: Levels | None  # [P, ...] where ended rows take their next level; None if generated on demand
    key: jax.Array  # scalar key, constant
    step: jax.Array  # uint32, steps taken


class VectorStep(NamedTuple):
    """What one step did. Leaves are `[B, ...]`."""

    observation: PyTree  # reached by the action, before any reset
    reward: jax.Array  # float32
    terminated: jax.Array  # bool
    truncated: jax.Array  # bool
    mask: jax.Array  # bool, False where no action was taken: the episode had ended before
    info: Info


@dataclass(frozen=True)
class VectorEnv:
    """Steps `num_envs` copies of an environment and resets those whose episode ended.

    The level that an ended row gets is a function of the state's key, the row's index and the step number alone, so rows never
    depend on each other.

    Attributes:
      env: the environment.
      num_envs: B.
      reset_mode: `same_step` replaces the observation at once (the one before the reset is in `VectorStep`); `next_step` spends
        one masked step on the reset; `none` plays one episode a row.
      levels: `pool` draws from P levels that `refresh` generates anew; `fresh` generates a level for each reset; `fixed` gives
        every row its own first level again.
      pool_size: P, as many as environments unless set.
      group_size: G; the first G rows begin on the same level, the next G on another. What happens then is each row's own.
    """

    env: Environment
    num_envs: int
    reset_mode: ResetMode = "same_step"
    levels: LevelSource = "pool"
    pool_size: int | None = None
    group_size: int = 1

    def validate(self) -> None:
        """Raises ValueError that names the wrong field."""
        choices = {"reset_mode": ("same_step", "next_step", "none"), "levels": ("pool", "fresh", "fixed")}
        for field, known in choices.items():
            if getattr(self, field) not in known:
                raise ValueError(f"{field}: expected one of {', '.join(known)}, got {getattr(self, field)!r}")
        for field in ("num_envs", "pool_size", "group_size"):
            value = getattr(self, field)
            if value is not None and not is_count(value):
                raise ValueError(f"{field}: expected a positive integer, got {value}")
        if self.num_envs % self.group_size:
            raise ValueError(f"group_size: expected a divisor of the {self.num_envs} environments, got {self.group_size}")

    def init(self, key: jax.Array, params: PyTree) -> VectorState:
        """Starts every row, or every group of rows, on a level of its own.

        Raises:
          ValueError: a field is wrong.
        """
        self.validate()
        state_key, level_key, pool_key = jax.random.split(key, 3)
        first = self._generate(jax.random.split(level_key, self.num_envs // self.group_size), params)
        if self.group_size > 1:
            first = jax.tree.map(lambda leaf: jnp.repeat(leaf, self.group_size, axis=0), first)
        return VectorState(
            env_state=first.env_state,
            observation=first.observation,
            is_first=jnp.ones(self.num_envs, bool),
            ended=jnp.zeros(self.num_envs, bool),
            levels=self._initial_levels(pool_key, first, params),
            key=state_key,
            step=jnp.zeros((), jnp.uint32),
        )

    def observe(self, state: VectorState) -> PyTree:
        """What the policy sees next, leaves `[B, ...]`.

        Where observations follow from the environment's state (it has a method `observe`), they are made here, where XLA can
        fuse them with what reads them, and neither kept in the state nor carried through resets.
        """
        return jax.vmap(self.env.observe)(state.env_state) if isinstance(self.env, Observable) else state.observation

    def refresh(self, state: VectorState, params: PyTree) -> VectorState:
        """Replaces the pool by newly generated levels. Nothing to do for the other level sources."""
        if not self.has_pool:
            return state
        _, _, pool_key = self._step_keys(state)
        return state._replace(levels=self._generate(jax.random.split(pool_key, self.num_levels), params))

    def step(self, state: VectorState, action: PyTree, params: PyTree) -> tuple[VectorState, VectorStep]:
        """Acts in every row, `action` [B, ...], and resets as `reset_mode` says.

        Raises:
          ValueError: actions of another shape or type than the environment's; when tracing.
        """
        check_action(self.env.spec.action, action, batch_shape=(self.num_envs,))
        env_key, level_key, _ = self._step_keys(state)
        env_keys = jax.random.split(env_key, self.num_envs)
        reached, env_state, reward, terminated, truncated, info = jax.vmap(self.env.step, in_axes=(0, 0, 0, None))(
            env_keys, state.env_state, action, params
        )
        active = ~state.ended
        terminated, truncated = terminated & active, truncated & active
        done = terminated | truncated
        out = VectorStep(reached, jnp.where(active, reward, 0.0), terminated, truncated, active, info)

        restart = {"same_step": done, "next_step": state.ended, "none": jnp.zeros_like(done)}[self.reset_mode]
        now = Levels(self._kept(reached), env_state)
        if self.reset_mode != "none":
            now = self._restart(restart, now, state.levels, level_key, params)
        still_over = {"same_step": jnp.zeros_like(done), "next_step": done, "none": done | state.ended}[self.reset_mode]
        state = VectorState(now.env_state, now.observation, restart, still_over, state.levels, state.key, state.step + 1)
        return state, out

    @property
    def has_pool(self) -> bool:
        """Whether ended rows draw their next level from a pool."""
        return self.levels == "pool" and self.reset_mode != "none"

    @property
    def num_levels(self) -> int:
        """P."""
        return self.pool_size or self.num_envs

    def _step_keys(self, state: VectorState) -> jax.Array:
        """Keys of this step: for the environments, for choosing levels, for generating a pool."""
        return jax.random.split(jax.random.fold_in(state.key, state.step), 3)

    def _generate(self, keys: jax.Array, params: PyTree) -> Levels:
        """One level a key, [N, ...]."""
        if isinstance(self.env, Rejecting) and self.env.rejects:
            return Levels(None, _accepted(self.env, keys, params))
        observation, env_state = jax.vmap(self.env.reset, in_axes=(0, None))(keys, params)
        return Levels(self._kept(observation), env_state)

    def _kept(self, observation: PyTree) -> PyTree:
        return None if isinstance(self.env, Observable) else observation

    def _initial_levels(self, key: jax.Array, first: Levels, params: PyTree) -> Levels | None:
        if self.levels == "fixed":
            return first
        return self._generate(jax.random.split(key, self.num_levels), params) if self.has_pool else None

    def _restart(self, mask: jax.Array, now: Levels, levels: Levels | None, key: jax.Array, params: PyTree) -> Levels:
        """Puts the masked rows on their next level; the cost grows with the number of such rows."""

        def next_levels(rows: jax.Array) -> Levels:
            row_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
            if levels is None:
                return self._generate(row_keys, params)
            if self.levels == "fixed":
                return take_rows(levels, rows)
            draws = jax.vmap(lambda row_key: jax.random.randint(row_key, (), 0, self.num_levels))(row_keys)
            return take_rows(levels, draws)

        def restart_rows(rows: jax.Array, current: Levels) -> Levels:
            return put_rows(current, rows, next_levels(rows))

        return over_rows(mask, restart_rows, now, size=chunk_size(self.num_envs))


_FEWEST_DRAWS = 64  # levels that are drawn at once, if there are as many to draw


def _accepted(env: Rejecting, keys: jax.Array, params: PyTree) -> PyTree:
    """What `redraw` gives for each key, [N, ...], by new draws for the rows that need them instead of for all.

    Where fewer rows need one than are drawn at once, they share the places: several attempts a row, the first accepted counts.
    """
    (num_rows,) = keys.shape
    size = max(min(num_rows, _FEWEST_DRAWS), num_rows // 16)
    places = jnp.arange(size)

    def draw(attempts: jax.Array, keys: jax.Array) -> tuple[PyTree, jax.Array]:
        return jax.vmap(env.propose, in_axes=(0, 0, None))(keys, attempts, params)

    def draw_again(loop: tuple[jax.Array, tuple[PyTree, jax.Array]]) -> tuple[jax.Array, tuple[PyTree, jax.Array]]:
        attempt, drawn = loop

        def draw_rows(rows: jax.Array, drawn: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
            turn, place = jnp.divmod(places, jnp.maximum(jnp.sum(rows < num_rows), 1))
            rows = rows[place]
            state, accepted = draw(attempt + turn.astype(jnp.uint32), take_rows(keys, rows))
            first = jnp.full(size, size).at[place].min(jnp.where(accepted, turn, size))
            return put_rows(drawn, jnp.where(turn == first[place], rows, num_rows), (state, accepted))

        turns = jnp.maximum(size // jnp.maximum(jnp.sum(~drawn[1]), 1), 1)  # that all rows had
        return attempt + turns.astype(jnp.uint32), over_rows(~drawn[1], draw_rows, drawn, size=size)

    nothing = zeros_like(draw, jnp.zeros(num_rows, jnp.uint32), keys)
    return jax.lax.while_loop(lambda loop: ~jnp.all(loop[1][1]), draw_again, (jnp.uint32(0), nothing))[1][0]
