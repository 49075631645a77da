"""Rejection sampling: clones the best of its own episodes, again and again (Zelikman et al. 2022; Gulcehre et al. 2023).

Letters: `T` time, `B` episodes, one a row, `G` episodes a group on one level, `k` of them kept.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagent.learners.common import (
    actor,
    check_fields,
    cloning_loss,
    initial_params,
    mean_divergence,
    minimize,
    of_episodes,
    reference_params,
    within_episodes,
)
from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import groups
from jaxagent.ops.distributions import Distribution
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights
from jaxagent.ops.optimizer import adam_init
from jaxagent.types import Batch, Carry, EnvSpec, Metrics, Policy, PyTree, Transition, is_count


class RejectionState(NamedTuple):
    params: PyTree
    optimizer: optax.OptState
    update: jax.Array  # int32, updates done
    reference: PyTree  # parameters that the policy is compared with; None without


class Episodes(NamedTuple):
    """What the loss reads. Leaves are `[N, T, ...]`."""

    observation: PyTree
    is_first: jax.Array
    action: PyTree
    mask: jax.Array  # bool, steps of an episode that was good enough
    reference: PyTree  # action parameters of the reference policy; None without


@struct.dataclass(kw_only=True)
class Rejection:
    """The learner. Fields set to None are off.

    Attributes:
      lr: learning rate, of Adam.
      max_grad_norm: bound on the global norm of the gradients.
      min_return: episodes that earned less are not cloned, even if they are the best of their group.
      kl_coef: weight of `KL(policy || reference)` in nats a step of the episodes cloned; 0 measures it only.
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
    kl_coef: float | None = None
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
        """Raises ValueError that names the wrong field. What is being traced is not looked at."""
        check_fields(self)
        if not is_count(self.group_size, 2):
            raise ValueError(f"group_size: expected at least 2 episodes to choose from, got {self.group_size}")
        if not is_count(self.num_kept) or self.num_kept >= self.group_size:
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
        """The state before the first update, from `params` if given. The reference is `reference`, or these parameters.

        Raises:
          ValueError: the network is not for such an environment, or `params` or `reference` are not for the network.
        """
        initial = initial_params(self.network, key, spec, params)
        return RejectionState(initial, adam_init(initial), jnp.zeros((), jnp.int32), reference_params(self, initial, reference))

    def agent(self, state: RejectionState) -> PyTree:
        """What acting reads of the state: the parameters."""
        return state.params

    def network_params(self, state: RejectionState) -> PyTree:
        """The network's parameters, for another run to begin with."""
        return state.params

    def policy(self, greedy: bool = False) -> Policy:
        """Samples actions, or takes the likeliest.

        `act` adds to the extras `action_params` where they are compared with a reference.
        """

        def extras(carry: Carry, action_params: PyTree, distribution: Distribution, action: PyTree) -> dict[str, PyTree]:
            return {} if self.kl_coef is None else {"action_params": action_params}

        return actor(self.network, greedy, extras)

    def update(self, state: RejectionState, batch: Batch, key: jax.Array) -> tuple[RejectionState, Metrics]:
        """`num_epochs` passes over the best episodes of a batch `[T, B]`, in minibatches drawn anew for each."""
        transition = batch.transition
        params, optimizer, metrics = one_by_one_on_cpu(Rejection._optimize)(self, state, transition, key)
        return RejectionState(params, optimizer, state.update + 1, state.reference), metrics

    def _optimize(
        self, state: RejectionState, transition: Transition, key: jax.Array
    ) -> tuple[PyTree, optax.OptState, Metrics]:
        """Steps through all minibatches of all epochs."""
        return within_episodes(Rejection._optimize_within, self, transition, state, key)

    def _optimize_within(
        self, transition: Transition, state: RejectionState, key: jax.Array
    ) -> tuple[PyTree, optax.OptState, Metrics]:
        metrics: Metrics = {}
        reference = None
        if self.kl_coef is not None:
            reference = of_episodes(self.network, state.reference, transition)
            metrics["kl"] = mean_divergence(self.network, transition.extras["action_params"], reference, transition)
        earned = jnp.sum(jnp.where(transition.mask, transition.reward, 0.0), axis=0)
        varies = groups.compare(earned, self.group_size, scale="none", floor=1.0).varies
        metrics["zero_variance_rate"] = 1.0 - varies.mean(dtype=jnp.float32)
        _, places = jax.lax.top_k(earned.reshape(-1, self.group_size), self.num_kept)  # [groups, k]
        rows = (jnp.arange(places.shape[0])[:, None] * self.group_size + places).reshape(-1)
        returns = earned[rows]
        is_cloned = jnp.ones_like(returns, bool) if self.min_return is None else returns >= self.min_return
        metrics |= {"kept_return": returns.mean(), "kept_rate": is_cloned.mean(dtype=jnp.float32)}
        kept = Episodes(transition.observation, transition.is_first, transition.action, transition.mask, reference)
        kept = jax.tree.map(lambda x: jnp.swapaxes(x[:, rows], 0, 1), kept)
        kept = kept._replace(mask=kept.mask & is_cloned[:, None])
        params, optimizer, measured = minimize(self, self._loss, state.params, state.optimizer, kept, key, update=state.update)
        return params, optimizer, metrics | measured

    def _loss(self, params: PyTree, items: Episodes) -> tuple[jax.Array, Metrics]:
        """The negative log likelihood of the actions, and what to look at beside it."""
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items)  # [T, rows, ...]
        near = None if self.kl_coef is None else (steps.reference, self.kl_coef)
        action_params = of_episodes(self.network, params, steps)
        return cloning_loss(self.network, action_params, steps, mean_weights(steps.mask), near)
