"""Many runs in one program: trainers that differ in their traced leaves only (a static group), one a lane, side by side.

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
_SPLIT = PartitionSpec(_AXIS)


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


def mesh_of(num_devices: int) -> Mesh:
    """Local devices to split lanes over."""
    return Mesh(np.array(jax.local_devices()[:num_devices]), (_AXIS,))


def split(tree: PyTree, mesh: Mesh) -> PyTree:
    """Puts leaves `[W, ...]` on the devices, an equal part on each."""
    return jax.device_put(tree, NamedSharding(mesh, _SPLIT))


def over_lanes(function: Callable[..., PyTree], mesh: Mesh, *, shared: int = 0) -> Callable[..., PyTree]:
    """`function` on every device, of its lanes alone: leaves are `[W, ...]` outside of it and `[W / devices, ...]` inside.

    The last `shared` arguments are the same for all. There is nothing that the devices tell each other.
    """

    def run(*arguments: PyTree) -> PyTree:
        specs = (_SPLIT,) * (len(arguments) - shared) + (PartitionSpec(),) * shared
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=_SPLIT, check_vma=False)(*arguments)

    return run


def advance(capacity: int, trainers: Trainer, state: RunState, count: jax.Array | int) -> Advanced:
    """`count` updates in every lane, at most `capacity`.

    The loop is outside of the `vmap`: how often it runs is no lane's own, so nothing has to be selected.
    """
    step = jax.vmap(Trainer.step)
    shapes = jax.eval_shape(step, trainers, state)[1]
    rows = {name: jnp.zeros((s.shape[0], capacity, *s.shape[1:]), s.dtype) for name, s in shapes.items()}

    def body(place: jax.Array, loop: Advanced) -> Advanced:
        state, metrics = step(trainers, loop.state)
        rows = {name: row.at[:, place].set(metrics[name]) for name, row in loop.metrics.items()}
        fails = (loop.failed_at < 0) & ~jax.vmap(all_finite)(state.learner)
        return Advanced(state, rows, jnp.where(fails, state.update, loop.failed_at))

    return jax.lax.fori_loop(0, count, body, Advanced(state, rows, jnp.full_like(state.update, -1)))


class LaneProgram:
    """The compiled parts, for `width` lanes over the local devices; the width is a multiple of their number."""

    def __init__(self, template: Trainer, *, width: int, capacity: int, num_episodes: int) -> None:
        """`template` is any trainer of the group, `capacity` C, `num_episodes` those of an evaluation."""
        self.width = width
        self._mesh = mesh_of(jax.local_device_count())
        self._init = jax.jit(over_lanes(_init, self._mesh, shared=1))
        self._advance = jax.jit(over_lanes(partial(advance, capacity), self._mesh, shared=1), donate_argnums=1)
        self._evaluate = jax.jit(over_lanes(partial(_evaluate, num_episodes), self._mesh))
        self._compiled_advance: jax.stages.Compiled | None = None

    def init(self, trainers: Trainer, seeds: np.ndarray, warm_start: PyTree = None) -> RunState:
        """Before the first update; `trainers` are stacked, seeds `[W]`. All begin with the network `warm_start`, if given."""
        lanes = split((trainers, jnp.asarray(seeds, jnp.int32)), self._mesh)
        return self._init(*lanes, self._everywhere(warm_start))

    def advance(self, trainers: Trainer, state: RunState, count: int) -> Advanced:
        """`count` updates in every lane, at most C. The state given is used up."""
        arguments = *split((trainers, state), self._mesh), self._everywhere(jnp.int32(count))
        advanced: Advanced = self._compile(*arguments)(*arguments)
        return advanced

    def evaluate(self, trainers: Trainer, state: RunState, seeds: np.ndarray) -> evaluation.EpisodeResults:
        """Greedy episodes, those of `loop.Program.evaluate`; leaves `[W, N]` on the host."""
        return jax.device_get(self._evaluate(*split((trainers, state, jnp.asarray(seeds, jnp.int32)), self._mesh)))

    def shapes(self, trainers: Trainer) -> RunState:
        """The structure of a state `[W, ...]`, without making one."""
        return jax.eval_shape(self._init, trainers, jnp.zeros(self.width, jnp.int32), None)

    def memory(self, trainers: Trainer) -> int | None:
        """Bytes of a device that `advance` needs, as its compiler says; None where it does not say."""
        sharding = NamedSharding(self._mesh, _SPLIT)
        state = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), self.shapes(trainers))
        analysis = self._compile(split(trainers, self._mesh), state, self._everywhere(jnp.int32(1))).memory_analysis()
        if analysis is None:
            return None
        needed = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
        return int(needed - analysis.alias_size_in_bytes)

    def _everywhere(self, tree: PyTree) -> PyTree:
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))

    def _compile(self, *arguments: PyTree) -> jax.stages.Compiled:
        if self._compiled_advance is None:
            self._compiled_advance = self._advance.lower(*arguments).compile()
        return self._compiled_advance


def _init(trainers: Trainer, seeds: jax.Array, warm_start: PyTree) -> RunState:
    return jax.vmap(lambda trainer, seed: trainer.init(jax.random.key(seed), warm_start=warm_start))(trainers, seeds)


def _evaluate(num_episodes: int, trainers: Trainer, state: RunState, seeds: jax.Array) -> evaluation.EpisodeResults:
    def play(trainer: Trainer, learner: PyTree, seed: jax.Array) -> evaluation.EpisodeResults:
        policy, agent = trainer.learner.policy(greedy=True), trainer.learner.agent(learner)
        return evaluation.evaluate(trainer.env, trainer.params, policy, agent, evaluation_key(seed), num_episodes=num_episodes)

    return jax.vmap(play)(trainers, state.learner, seeds)
