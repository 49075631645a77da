"""Rejection sampling: clones the best of its own episodes, again and again (Zelikman et al. 2022; Gulcehre et al. 2023).

Letters: `T` time, `B` episodes, one a row, `G` episodes a group on one level, `k` of them kept.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagent.learners.common import actor, check_fields, cloning_loss, initial_params, minimize
from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import groups
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights
from jaxagent.ops.optimizer import adam_init
from jaxagent.types import Batch, EnvSpec, Metrics, Policy, PyTree


class RejectionState(NamedTuple):
    params: PyTree
    optimizer: optax.OptState
    update: jax.Array  # int32, updates done


class Episodes(NamedTuple):
    """What the loss reads. Leaves are `[N, T, ...]`."""

    observation: PyTree
    is_first: jax.Array
    action: PyTree
    mask: jax.Array  # bool, steps of an episode that was good enough


@struct.dataclass(kw_only=True)
class Rejection:
    """The learner. Fields set to None are off.

    Attributes:
      lr: learning rate, of Adam.
      max_grad_norm: bound on the global norm of the gradients.
      min_return: episodes that earned less are not cloned, even if they are the best of their group.
      lr_final: what lr changes to, linearly with the index of the update; constant if None.
      anneal_updates: index of the update at which it is reached.
      adam_b1, adam_b2, adam_eps: Adam's decay rates and the number that keeps it from dividing by zero.
      network: the actor-critic, of which the actor learns.
      group_size: G, episodes on one level.
      num_kept: k, episodes of a group that are cloned: those that earned most, of equals the first.
      oversample: groups played for each that is learnt from: those with the most varied returns.
      num_epochs: passes over the episodes that are kept.
      num_minibatches: gradient steps a pass.
    """

    # traced
    lr: float = 1e-3
    max_grad_norm: float = 0.5
    min_return: float | None = None
    lr_final: float | None = None
    anneal_updates: float | None = None
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-5
    # static
    network: ActorCritic = struct.field(pytree_node=False)
    group_size: int = struct.field(pytree_node=False, default=16)
    num_kept: int = struct.field(pytree_node=False, default=1)
    oversample: int = struct.field(pytree_node=False, default=1)
    num_epochs: int = struct.field(pytree_node=False, default=2)
    num_minibatches: int = struct.field(pytree_node=False, default=1)

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. Call it before tracing."""
        check_fields(self)
        if not isinstance(self.group_size, int) or self.group_size < 2:
            raise ValueError(f"group_size: expected at least 2 episodes to choose from, got {self.group_size}")
        if self.num_kept not in range(1, self.group_size):
            raise ValueError(f"num_kept: expected 1 to {self.group_size - 1} of a group, got {self.num_kept}")

    def validate_batch(self, *, num_steps: int, num_envs: int) -> None:
        """Raises ValueError if what is kept of so many episodes cannot be cut into equal minibatches."""
        del num_steps
        if num_envs % self.group_size:
            raise ValueError(f"num_envs: expected a multiple of the {self.group_size} episodes of a group, got {num_envs}")
        kept = num_envs // self.group_size * self.num_kept
        if kept % self.num_minibatches:
            raise ValueError(f"num_minibatches: expected a divisor of the {kept} episodes kept, got {self.num_minibatches}")

    def init(self, key: jax.Array, spec: EnvSpec, *, params: PyTree = None, reference: PyTree = None) -> RejectionState:
        """The state before the first update, from `params` if given.

        Raises:
          ValueError: the network is not for such an environment, `params` are not for the network, or there is a `reference`.
        """
        if reference is not None:
            raise ValueError("reference: expected None, since rejection sampling keeps to no reference policy")
        initial = initial_params(self.network, key, spec, params)
        return RejectionState(initial, adam_init(initial), jnp.zeros((), jnp.int32))

    def agent(self, state: RejectionState) -> PyTree:
        """What acting reads of the state: the parameters."""
        return state.params

    def network_params(self, state: RejectionState) -> PyTree:
        """The network's parameters, for another run to begin with."""
        return state.params

    def policy(self, greedy: bool = False) -> Policy:
        """Samples actions, or takes the likeliest."""

        return actor(self.network, greedy, lambda *_: {})

    def update(self, state: RejectionState, batch: Batch, key: jax.Array) -> tuple[RejectionState, Metrics]:
        """`num_epochs` passes over the best episodes of a batch `[T, B]`, in minibatches drawn anew for each."""
        transition = batch.transition
        earned = jnp.sum(jnp.where(transition.mask, transition.reward, 0.0), axis=0).reshape(-1, self.group_size)
        _, places = jax.lax.top_k(earned, self.num_kept)  # [groups, k]
        rows = (jnp.arange(earned.shape[0])[:, None] * self.group_size + places).reshape(-1)
        kept = Episodes(transition.observation, transition.is_first, transition.action, transition.mask)
        kept = jax.tree.map(lambda x: jnp.swapaxes(x[:, rows], 0, 1), kept)
        returns = earned.reshape(-1)[rows]
        is_cloned = jnp.ones_like(returns, bool) if self.min_return is None else returns >= self.min_return
        kept = kept._replace(mask=kept.mask & is_cloned[:, None])
        params, optimizer, metrics = one_by_one_on_cpu(Rejection._optimize)(self, state, kept, key)
        varies = groups.compare(earned.reshape(-1), self.group_size, scale="none", floor=1.0).varies
        metrics |= {"kept_return": returns.mean(), "kept_rate": is_cloned.mean(dtype=jnp.float32)}
        metrics["zero_variance_rate"] = 1.0 - varies.mean(dtype=jnp.float32)
        return RejectionState(params, optimizer, state.update + 1), metrics

    def _optimize(self, state: RejectionState, kept: Episodes, key: jax.Array) -> tuple[PyTree, optax.OptState, Metrics]:
        """Steps through all minibatches of all epochs. Metrics are means over them."""
        return minimize(self, self._loss, state.params, state.optimizer, kept, key, update=state.update)

    def _loss(self, params: PyTree, items: Episodes) -> tuple[jax.Array, Metrics]:
        """The negative log likelihood of the actions, and what to look at beside it."""
        memory = self.network.initial_carry(items.mask.shape[0])
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items)  # [T, rows, ...]
        return cloning_loss(self.network, params, memory, steps, mean_weights(steps.mask))
