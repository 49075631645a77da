"""Training as a pure function; `jaxagent.loop` drives it from the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagent.envs.base import Environment
from jaxagent.envs.vector import LevelSource, ResetMode, VectorEnv
from jaxagent.finite import all_finite
from jaxagent.sources import Demonstrations, OnPolicy, Source
from jaxagent.types import Metrics, PyTree


class RunState(NamedTuple):
    """All that a run needs to go on: arrays only."""

    learner: PyTree
    source: PyTree
    key: jax.Array  # scalar key, constant
    update: jax.Array  # int32, updates done


@struct.dataclass
class Trainer:
    """One training run. Its leaves are the learner's floats and the environment's params; the rest is static.

    `init`, `step` and `run` are pure and not jitted: a `vmap` over stacked trainers is a sweep, over keys it is several seeds.

    Attributes:
      env: the environment.
      params: its params.
      learner: the learner.
      num_envs: parallel environments, B.
      num_steps: steps a rollout in each, T.
      reset_mode, levels, pool_size: see `VectorEnv`.
      source: where batches come from; unless given, rollouts of the learner's `teacher` if it has one, else its own.
    """

    # static
    env: Environment = struct.field(pytree_node=False)
    # traced
    params: PyTree
    learner: Any
    # static
    num_envs: int = struct.field(pytree_node=False, default=64)
    num_steps: int = struct.field(pytree_node=False, default=128)
    reset_mode: ResetMode = struct.field(pytree_node=False, default="same_step")
    levels: LevelSource = struct.field(pytree_node=False, default="pool")
    pool_size: int | None = struct.field(pytree_node=False, default=None)
    source: Source | None = struct.field(pytree_node=False, default=None)

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. Call it outside of transformations such as `vmap`."""
        self.learner.validate()
        self._validate_static()

    def _validate_static(self) -> None:
        if not isinstance(self.num_steps, int) or self.num_steps < 1:
            raise ValueError(f"num_steps: expected a positive integer, got {self.num_steps}")
        self._vector_env.validate()
        _ = self._source  # which can be impossible for this environment
        self.learner.validate_batch(num_steps=self.num_steps, num_envs=self.num_envs)

    @property
    def steps_per_update(self) -> int:
        """Environment steps in one batch."""
        return self.num_envs * self.num_steps

    def init(self, key: jax.Array, *, warm_start: PyTree | None = None) -> RunState:
        """The state before the first update; `warm_start` holds network parameters to begin with.

        Raises:
          ValueError: a static field is wrong; `validate` checks the traced ones too, which needs numbers.
        """
        self._validate_static()
        learner_key, source_key, run_key = jax.random.split(key, 3)
        trainer = strong(self)
        return RunState(
            learner=trainer.learner.init(learner_key, self.env.spec, params=warm_start),
            source=trainer._source.init(source_key, trainer.learner.policy(), trainer.params),
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def step(self, state: RunState) -> tuple[RunState, Metrics]:
        """One batch and one update of the learner."""
        trainer = strong(self)
        learner = trainer.learner
        source_key, learner_key = jax.random.split(jax.random.fold_in(state.key, state.update))
        agent = learner.agent(state.learner)
        source, batch, source_metrics = trainer._source.next(state.source, learner.policy(), agent, trainer.params, source_key)
        learner_state, learner_metrics = learner.update(state.learner, batch, learner_key)
        state = RunState(learner_state, source, state.key, state.update + 1)
        return state, source_metrics | learner_metrics

    def run(self, state: RunState, num_updates: jax.Array | int, *, capacity: int | None = None) -> tuple[RunState, Metrics]:
        """Up to `num_updates` steps in one loop, which stops at an update that leaves a number that is not finite.

        Args:
          num_updates: how many; may be traced if `capacity` is given, so that one program serves any number up to it.
          capacity: length of the metrics' axis.

        Returns:
          The state reached, whose `update` tells how many steps were made, and each step's metrics, stacked to `[capacity]` and
          zero beyond those steps.
        """
        capacity = int(num_updates) if capacity is None else capacity
        if capacity < 1:
            raise ValueError(f"num_updates: expected at least 1, got {capacity}")
        shapes = jax.eval_shape(self.step, state)[1]
        rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
        start = state.update

        def goes_on(loop: tuple[RunState, Metrics]) -> jax.Array:
            state, _ = loop
            return (state.update - start < num_updates) & all_finite(state.learner)

        def body(loop: tuple[RunState, Metrics]) -> tuple[RunState, Metrics]:
            state, rows = loop
            place = state.update - start
            state, metrics = self.step(state)
            return state, jax.tree.map(lambda row, m: row.at[place].set(m), rows, metrics)

        return jax.lax.while_loop(goes_on, body, (state, rows))

    @property
    def _vector_env(self) -> VectorEnv:
        return VectorEnv(self.env, self.num_envs, self.reset_mode, self.levels, self.pool_size)

    @property
    def _source(self) -> Source:
        if self.source is not None:
            return self.source
        if hasattr(self.learner, "teacher"):
            return Demonstrations(self._vector_env, self.num_steps, self.learner.teacher(self.env))
        return OnPolicy(self._vector_env, self.num_steps)


def strong(tree: PyTree) -> PyTree:
    """Python numbers and weakly typed leaves as float32, int32 or bool arrays, so that no second call compiles anew."""

    def leaf(x: Any) -> jax.Array:
        kind = jnp.result_type(x)
        dtype = jnp.float32 if jnp.issubdtype(kind, jnp.floating) else jnp.int32 if isinstance(x, int) else kind
        return jnp.asarray(x, jnp.bool_ if isinstance(x, bool) else dtype)

    return jax.tree.map(lambda x: x if _is_key(x) else leaf(x), tree)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
