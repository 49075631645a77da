"""The compiled program of a static group: trainers that differ in their traced leaves only, one a lane, side by side.

Lanes never mix: no operation reads two of them, and none tells how many there are but by its shape. So a lane's numbers, at one
width and on one kind of machine, are the same bits wherever it stands and whatever the others do.

Letters: `W` lanes, `C` updates of a segment at most.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent import evaluation
from jaxagent.finite import all_finite
from jaxagent.loop import evaluation_key
from jaxagent.train import RunState, Trainer, strong
from jaxagent.types import Metrics, PyTree

_AXIS = "lanes"
_SHARDED = PartitionSpec(_AXIS)


class Advanced(NamedTuple):
    """What a segment did. Leaves are `[W, ...]`."""

    state: RunState
    metrics: Metrics  # [W, C], zero beyond the updates made
    failed_at: jax.Array  # int32, updates done when the learner's numbers were no longer finite; -1 if they are


def signature(trainer: Trainer) -> tuple[Any, ...]:
    """What trainers of one static group have in common: all that compiling them looks at."""
    leaves, structure = jax.tree.flatten(strong(trainer))
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def stacked(trainers: Sequence[Trainer]) -> Trainer:
    """Trainers of one group as one, on the host, whose leaves are `[W, ...]`."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *map(strong, trainers))


class LaneProgram:
    """The compiled parts, for `width` lanes over the local devices; the width is a multiple of their number."""

    def __init__(self, template: Trainer, *, width: int, capacity: int, num_episodes: int) -> None:
        """`template` is any trainer of the group, `capacity` C, `num_episodes` those of an evaluation."""
        self.width, self._capacity, self._num_episodes = width, capacity, num_episodes
        devices = jax.local_devices()
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self._sharding = NamedSharding(self._mesh, _SHARDED)
        self._init = self._over_lanes(_init)
        self._advance = self._over_lanes(partial(_advance, capacity), donate=1, unsharded=1)
        self._evaluate = self._over_lanes(partial(_evaluate, num_episodes))
        self._compiled_advance: jax.stages.Compiled | None = None

    def init(self, trainers: Trainer, seeds: np.ndarray) -> RunState:
        """Before the first update; `trainers` are stacked, seeds `[W]`."""
        return self._init(self._put(trainers), self._put(jnp.asarray(seeds, jnp.int32)))

    def advance(self, trainers: Trainer, state: RunState, count: int) -> Advanced:
        """`count` updates in every lane, at most C. The state given is used up."""
        arguments = self._put(trainers), self._put(state), self._put(jnp.int32(count), PartitionSpec())
        advanced: Advanced = self._compile(*arguments)(*arguments)
        return advanced

    def evaluate(self, trainers: Trainer, state: RunState, seeds: np.ndarray) -> evaluation.EpisodeResults:
        """Greedy episodes, those of `loop.Program.evaluate`; leaves `[W, N]` on the host."""
        return jax.device_get(self._evaluate(self._put(trainers), self._put(state), self._put(jnp.asarray(seeds, jnp.int32))))

    def shapes(self, trainers: Trainer) -> RunState:
        """The structure of a state `[W, ...]`, without making one."""
        return jax.eval_shape(self._init, trainers, jnp.zeros(self.width, jnp.int32))

    def memory(self, trainers: Trainer) -> int | None:
        """Bytes of a device that `advance` needs, as its compiler says; None where it does not say."""
        state = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._sharding), self.shapes(trainers))
        analysis = self._compile(self._put(trainers), state, self._put(jnp.int32(1), PartitionSpec())).memory_analysis()
        if analysis is None:
            return None
        needed = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
        return int(needed - analysis.alias_size_in_bytes)

    def _compile(self, *arguments: PyTree) -> jax.stages.Compiled:
        if self._compiled_advance is None:
            self._compiled_advance = self._advance.lower(*arguments).compile()
        return self._compiled_advance

    def _put(self, tree: PyTree, spec: PartitionSpec = _SHARDED) -> PyTree:
        return jax.device_put(tree, NamedSharding(self._mesh, spec))

    def _over_lanes(self, function: Callable[..., PyTree], *, donate: int | None = None, unsharded: int = 0) -> Any:
        """`function` of arguments `[W / devices, ...]`, the last `unsharded` of them the same for all, run on every device."""

        def run(*arguments: PyTree) -> PyTree:
            specs = (_SHARDED,) * (len(arguments) - unsharded) + (PartitionSpec(),) * unsharded
            mapped = jax.shard_map(function, mesh=self._mesh, in_specs=specs, out_specs=_SHARDED, check_vma=False)
            return mapped(*arguments)

        return jax.jit(run, donate_argnums=() if donate is None else donate)


def _init(trainers: Trainer, seeds: jax.Array) -> RunState:
    return jax.vmap(lambda trainer, seed: trainer.init(jax.random.key(seed)))(trainers, seeds)


def _advance(capacity: int, trainers: Trainer, state: RunState, count: jax.Array) -> Advanced:
    """The loop is outside of the `vmap`: how often it runs is no lane's own, so nothing has to be selected."""
    step = jax.vmap(Trainer.step)
    shapes = jax.eval_shape(step, trainers, state)[1]
    rows = {name: jnp.zeros((s.shape[0], capacity, *s.shape[1:]), s.dtype) for name, s in shapes.items()}

    def body(place: jax.Array, loop: Advanced) -> Advanced:
        state, metrics = step(trainers, loop.state)
        rows = {name: row.at[:, place].set(metrics[name]) for name, row in loop.metrics.items()}
        fails = (loop.failed_at < 0) & ~jax.vmap(all_finite)(state.learner)
        return Advanced(state, rows, jnp.where(fails, state.update, loop.failed_at))

    return jax.lax.fori_loop(0, count, body, Advanced(state, rows, jnp.full_like(state.update, -1)))


def _evaluate(num_episodes: int, trainers: Trainer, state: RunState, seeds: jax.Array) -> evaluation.EpisodeResults:
    def play(trainer: Trainer, learner: PyTree, seed: jax.Array) -> evaluation.EpisodeResults:
        policy, agent = trainer.learner.policy(greedy=True), trainer.learner.agent(learner)
        return evaluation.evaluate(trainer.env, trainer.params, policy, agent, evaluation_key(seed), num_episodes=num_episodes)

    return jax.vmap(play)(trainers, state.learner, seeds)
