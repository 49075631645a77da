"""Training as a pure function; `jaxagent.loop` drives it from the host.

Over the devices of a mesh the environments are spread in `BLOCKS` blocks, each with levels, random numbers and shares of the
minibatches of its own. A device holds several blocks side by side, or one. Since the blocks are the same on any number of
devices, so is what they learn, but for the order in which floats are added.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.envs.base import Environment
from jaxagent.envs.tools.base import ToolEnv
from jaxagent.envs.vector import LevelSource, ResetMode, VectorEnv
from jaxagent.finite import all_finite
from jaxagent.ops import across
from jaxagent.sources import Demonstrations, Groups, OnPolicy, Source
from jaxagent.types import Metrics, PyTree, is_count

BLOCKS = 8  # of environments, on the devices of a mesh
_BLOCK = "block"  # axis of the blocks on one device
_OF_ROLLOUTS = {"reset_mode": "same_step", "levels": "pool", "pool_size": None}  # and their defaults
_MEANS = ("resets_per_level", "unfinished_rate")


class RunState(NamedTuple):
    """All that a run needs to go on: arrays only."""

    learner: PyTree
    source: PyTree  # with a mesh, leaves have a leading axis [BLOCKS]
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
      mesh: devices that share the environments, 1, 2, 4 or 8 along its one axis; all of these numbers train alike. None trains
        on one device, without blocks, and so draws other random numbers than a mesh of one.
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
    mesh: Mesh | None = struct.field(pytree_node=False, default=None)

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. What a transformation such as `vmap` traces is not looked at."""
        self.learner.validate()
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self.params))
        if isinstance(self.env, ToolEnv) and not traced:
            self.env.check_params(self.params)
        if not is_count(self.num_steps):
            raise ValueError(f"num_steps: expected a positive integer, got {self.num_steps}")
        self._vector_env.validate()
        if hasattr(self.learner, "group_size"):
            for field, default in _OF_ROLLOUTS.items():
                if getattr(self, field) != default:
                    found = f"{type(self.learner).__name__} plays whole episodes, each group on a new level"
                    raise ValueError(f"{field}: expected {default}, since {found}, got {getattr(self, field)!r}")
        _ = self._source  # which can be impossible for this environment
        if self.mesh is None:
            self.learner.validate_batch(num_steps=self.num_steps, num_envs=self.num_envs)
        else:
            self._validate_mesh(self.mesh)

    def _validate_mesh(self, mesh: Mesh) -> None:
        if len(mesh.axis_names) != 1 or BLOCKS % mesh.size:
            raise ValueError(f"mesh: expected one axis of 1, 2, 4 or {BLOCKS} devices, got {dict(mesh.shape)}")
        if not hasattr(self.learner, "axes"):
            raise ValueError(f"mesh: expected None, since {type(self.learner).__name__} learns on one device only")
        if self.source is not None:
            raise ValueError("source: expected None with a mesh, whose blocks have sources of their own")
        for field in ("num_envs", "pool_size"):
            if (getattr(self, field) or 0) % BLOCKS:
                raise ValueError(f"{field}: expected a multiple of {BLOCKS} with a mesh, got {getattr(self, field)}")
        try:
            self.learner.validate_batch(num_steps=self.num_steps, num_envs=self.num_envs // BLOCKS)
        except ValueError as error:
            raise ValueError(f"{error} (in each of a mesh's {BLOCKS} blocks of num_envs = {self.num_envs})") from error

    @property
    def steps_per_update(self) -> int:
        """Environment steps in one batch."""
        return self.num_envs * self.num_steps

    def warnings(self) -> list[str]:
        """What is allowed but rarely meant, a line each that begins with the field. Call it outside of transformations."""
        steps_a_turn = 2 if isinstance(self.env, ToolEnv) and self.env.turn == "pair" else 1
        bound = self.env.spec.max_steps
        longest = min(bound, steps_a_turn * int(getattr(self.params, "max_steps", bound)))
        if not isinstance(self._source, Groups) or self.num_steps >= longest:
            return []
        return [f"num_steps: episodes may take {longest} steps, and are cut after {self.num_steps}"]

    @property
    def demonstrated(self) -> bool:
        """Whether a teacher acts in the batches, so that what is told of their episodes is the teacher's."""
        return isinstance(self._source, Demonstrations)

    def init(self, key: jax.Array, *, warm_start: PyTree | None = None, reference: PyTree | None = None) -> RunState:
        """The state before the first update.

        Args:
          key: of everything random.
          warm_start: network parameters to begin with.
          reference: those of the policy that a learner with `kl_coef` is kept near, unless it is the one it begins with.

        Raises:
          ValueError: a field is wrong (see `validate`).
        """
        self.validate()
        init = Trainer._init if self.mesh is None else _in_blocks(self.mesh, Trainer._init, (None, None, None), _SPREAD)
        return init(strong(self), key, warm_start, reference)

    def step(self, state: RunState) -> tuple[RunState, Metrics]:
        """One batch and one update of the learner."""
        step = Trainer._step if self.mesh is None else _in_blocks(self.mesh, Trainer._step, (_SPREAD,), (_SPREAD, None))
        return step(strong(self), state)

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

    def shardings(self) -> RunState:
        """Where the parts of a state lie, as a prefix of its tree. Only with a mesh."""
        assert self.mesh is not None
        return jax.tree.map(partial(NamedSharding, self.mesh), _specs(self.mesh, _SPREAD))

    def _init(self, key: jax.Array, warm_start: PyTree | None, reference: PyTree | None) -> RunState:
        learner_key, source_key, run_key = jax.random.split(key, 3)
        return RunState(
            learner=self.learner.init(learner_key, self.env.spec, params=warm_start, reference=reference),
            source=self._source.init(across.own_key(source_key, self._axes), self.learner.policy(), self.params),
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def _step(self, state: RunState) -> tuple[RunState, Metrics]:
        learner = self.learner
        step_key = across.own_key(jax.random.fold_in(state.key, state.update), self._axes)
        source_key, learner_key = jax.random.split(step_key)
        agent = learner.agent(state.learner)
        source, batch, source_metrics = self._source.next(state.source, learner.policy(), agent, self.params, source_key)
        if self._axes:
            source_metrics = _of_all_blocks(source_metrics, self._axes)
        learner_state, learner_metrics = learner.update(state.learner, batch, learner_key)
        state = RunState(learner_state, source, state.key, state.update + 1)
        return state, source_metrics | learner_metrics

    def _of_a_block(self, axes: across.Axes) -> "Trainer":
        """The trainer of one block, which sums over `axes` what concerns all."""
        pool_size = self.pool_size and self.pool_size // BLOCKS
        learner = self.learner.replace(axes=axes)
        return dataclasses.replace(self, num_envs=self.num_envs // BLOCKS, pool_size=pool_size, learner=learner, mesh=None)

    @property
    def _axes(self) -> across.Axes:
        return getattr(self.learner, "axes", ())

    @property
    def _vector_env(self) -> VectorEnv:
        return VectorEnv(self.env, self.num_envs, self.reset_mode, self.levels, self.pool_size)

    @property
    def _source(self) -> Source:
        if self.source is not None:
            return self.source
        if hasattr(self.learner, "group_size"):
            played = self.num_envs * self.learner.oversample
            vector_env = VectorEnv(self.env, played, "none", group_size=self.learner.group_size)
            anchor = None if getattr(self.learner, "turn_weight", None) is None else self.learner.anchor
            return Groups(vector_env, self.num_steps, self.learner.oversample, anchor)
        if hasattr(self.learner, "teacher"):
            return Demonstrations(self._vector_env, self.num_steps, self.learner.teacher(self.env))
        return OnPolicy(self._vector_env, self.num_steps)


_SPREAD: Any = RunState(None, 0, None, None)  # type: ignore[arg-type]  # the axis of the blocks; None for what they share


def _in_blocks(mesh: Mesh, function: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
    """`function(trainer, *arguments)` of each block's trainer on the devices of a mesh.

    Axes are as for `jax.vmap`, 0 for what a block has of its own and None for what all have in common. What is returned under
    None must have been summed over all blocks; `jax.vmap` refuses anything else when tracing.
    """
    blocks_here = BLOCKS // mesh.size
    axes = mesh.axis_names if blocks_here == 1 else (*mesh.axis_names, _BLOCK)

    def block(trainer: Trainer, *arguments: PyTree) -> PyTree:
        return function(trainer._of_a_block(axes), *arguments)

    def only_block(trainer: Trainer, *arguments: PyTree) -> PyTree:
        """Without the loops over all rows that `jax.vmap` makes of loops over a few."""
        out = block(trainer, *_on_parts(lambda x: x[0], in_axes, arguments))
        return _on_parts(lambda x: x[None], out_axes, out)

    every_block = jax.vmap(block, (None, *in_axes), out_axes, axis_name=_BLOCK, axis_size=blocks_here)
    return jax.shard_map(
        only_block if blocks_here == 1 else every_block,
        mesh=mesh,
        in_specs=(PartitionSpec(), *_specs(mesh, in_axes)),
        out_specs=_specs(mesh, out_axes),
        check_vma=False,
    )


def _of_all_blocks(metrics: Metrics, axes: across.Axes) -> Metrics:
    """A source's metrics are sums over its environments, or means over as many levels as every other block has."""
    metrics = across.total(metrics, axes)
    return {name: value / BLOCKS if name in _MEANS else value for name, value in metrics.items()}


def _on_parts(change: Callable[[jax.Array], jax.Array], axes: PyTree, tree: PyTree) -> PyTree:
    """Changes the leaves of a tree in the parts that have an axis of blocks."""
    return jax.tree.map(lambda axis, part: part if axis is None else jax.tree.map(change, part), axes, tree, is_leaf=_is_none)


def _specs(mesh: Mesh, axes: PyTree) -> PyTree:
    return jax.tree.map(lambda axis: PartitionSpec(*(() if axis is None else mesh.axis_names)), axes, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


def strong(tree: PyTree) -> PyTree:
    """Python numbers and weakly typed leaves as float32, int32 or bool arrays, so that no second call compiles anew."""

    def leaf(x: Any) -> jax.Array:
        kind = jnp.result_type(x)
        dtype = jnp.float32 if jnp.issubdtype(kind, jnp.floating) else jnp.int32 if isinstance(x, int) else kind
        return jnp.asarray(x, jnp.bool_ if isinstance(x, bool) else dtype)

    return jax.tree.map(lambda x: x if _is_key(x) else leaf(x), tree)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
