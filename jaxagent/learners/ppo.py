"""Proximal policy optimisation (Schulman et al. 2017), with the details of Huang et al. 2022.

Letters: `T` time, `B` rows, `L` steps of a sequence (1 without memory), `N = T / L * B` sequences, `M` minibatches.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagent.learners.common import (
    action_distribution,
    check_batch,
    check_fields,
    followed,
    initial_params,
    minimize,
    reference_params,
    within_tokens,
)
from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import across, minibatch, running_stats
from jaxagent.ops.distributions import Distribution
from jaxagent.ops.kl import divergence
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights, standardize, weighted_mean, weighted_variance
from jaxagent.ops.optimizer import adam_init, anneal
from jaxagent.ops.policy_losses import clipped_surrogate, is_clipped, kl_estimate
from jaxagent.ops.returns import gae
from jaxagent.ops.running_stats import RunningStats
from jaxagent.ops.value_losses import clipped_squared_error, squared_error
from jaxagent.types import Batch, Carry, EnvSpec, Metrics, Policy, PolicyInput, PyTree, Transition

_MAX_SCALED_REWARD = 10.0


class PPOAgent(NamedTuple):
    """What acting reads."""

    params: PyTree
    observation_stats: RunningStats | None
    reference: PyTree  # parameters; None without a reference policy


class PPOState(NamedTuple):
    params: PyTree
    optimizer: optax.OptState
    update: jax.Array  # int32, updates done
    observation_stats: RunningStats | None  # None unless observations are normalised
    return_stats: RunningStats | None  # of discounted returns; None unless rewards are normalised
    reference: PyTree  # parameters that the policy is kept near; None without
    kl_coef: jax.Array | None  # float32, as it has adapted; None without a reference


class PPOCarry(NamedTuple):
    """A policy's memory. Leaves are `[B, ...]`."""

    memory: Carry  # the network's
    reference_memory: Carry  # the reference policy's; None without
    past_return: jax.Array | None  # [B] discounted sum of the episode's earlier rewards; None unless rewards are normalised


class Sequences(NamedTuple):
    """What the loss reads. Leaves are `[N, L, ...]`, but for the memory."""

    observation: PyTree
    is_first: jax.Array
    action: PyTree
    log_prob: jax.Array  # under the policy that acted
    value: jax.Array  # of the critic that watched it
    advantage: jax.Array
    target: jax.Array  # of the value
    mask: jax.Array
    reference: PyTree  # action parameters of the reference policy; None unless the loss reads them
    memory: Carry  # [N, ...] before the first step


@struct.dataclass(kw_only=True)
class PPO:
    """The learner. Fields set to None are off.

    Attributes:
      lr: learning rate, of Adam.
      gamma: discount.
      gae_lambda: decay of the advantage's trace.
      clip_eps: bound on the change of an action's probability ratio.
      entropy_coef: weight of the entropy bonus.
      value_coef: weight of the value loss.
      max_grad_norm: bound on the global norm of the gradients.
      lr_final: what lr changes to, linearly with the index of the update; constant if None.
      clip_eps_final: what clip_eps changes to, likewise.
      entropy_coef_final: what entropy_coef changes to, likewise.
      anneal_updates: index of the update at which the final values are reached.
      value_clip_eps: bound on a value's change, in units of value.
      target_kl: minibatches after the first whose `KL(old || new)` exceeds it are skipped, that one too.
      kl_coef: weight of `KL(policy || reference)` in nats a step, at first where there is a target. The reference is the
        policy that training begins with, unless another is given.
      kl_target: divergence, in nats a step, to which the weight adapts.
      reference_every: updates after which the reference becomes the policy that there is then.
      adam_b1, adam_b2, adam_eps: Adam's decay rates and the number that keeps it from dividing by zero.
      network: the actor-critic.
      num_epochs: passes over a batch.
      num_minibatches: gradient steps a pass.
      sequence_length: L with a memory, which starts from the stored one; the whole rollout unless set.
      normalize_advantage: over what advantages are standardised.
      normalize_observation: whether float observations are standardised by running statistics.
      normalize_reward: whether rewards are divided by the running standard deviation of the discounted return.
      kl_in: where the divergence counts: in the `loss`, or in the `reward`.
      axes: mapped axes that a batch is spread over, where `update` takes a part of it; a `Trainer` with a mesh sets them.
    """

    # traced
    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2  # epsilon, eq. 7
    entropy_coef: float = 0.01  # c2, eq. 9
    value_coef: float = 0.5  # c1, eq. 9
    max_grad_norm: float = 0.5
    lr_final: float | None = None
    clip_eps_final: float | None = None
    entropy_coef_final: float | None = None
    anneal_updates: float | None = None
    value_clip_eps: float | None = None
    target_kl: float | None = None
    kl_coef: float | None = None
    kl_target: float | None = None
    reference_every: float | None = None
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-5
    # static
    network: ActorCritic = struct.field(pytree_node=False)
    num_epochs: int = struct.field(pytree_node=False, default=4)
    num_minibatches: int = struct.field(pytree_node=False, default=4)
    sequence_length: int | None = struct.field(pytree_node=False, default=None)
    normalize_advantage: Literal["minibatch", "batch", "none"] = struct.field(pytree_node=False, default="minibatch")
    normalize_observation: bool = struct.field(pytree_node=False, default=False)
    normalize_reward: bool = struct.field(pytree_node=False, default=False)
    kl_in: Literal["loss", "reward"] = struct.field(pytree_node=False, default="loss")
    axes: across.Axes = struct.field(pytree_node=False, default=())

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. What is being traced is not looked at."""
        check_fields(self)
        if self.normalize_advantage not in ("minibatch", "batch", "none"):
            raise ValueError(f"normalize_advantage: expected minibatch, batch or none, got {self.normalize_advantage!r}")
        if not self.network.critic:
            raise ValueError("network.critic: expected true, since PPO needs a critic")
        if self.kl_in not in ("loss", "reward"):
            raise ValueError(f"kl_in: expected loss or reward, got {self.kl_in!r}")

    def validate_batch(self, *, num_steps: int, num_envs: int) -> None:
        """Raises ValueError if batches `[num_steps, num_envs]` cannot be cut into equal minibatches."""
        check_batch(self, num_steps=num_steps, num_envs=num_envs)

    def init(self, key: jax.Array, spec: EnvSpec, *, params: PyTree = None, reference: PyTree = None) -> PPOState:
        """The state before the first update, from `params` if given. The reference is `reference`, or these parameters.

        Raises:
          ValueError: the network is not for such an environment, or `params` or `reference` are not for the network.
        """
        initial = initial_params(self.network, key, spec, params)
        observation = self.network.zero_observation()
        return_stats = running_stats.init(jnp.zeros(())) if self.normalize_reward else None
        return PPOState(
            params=initial,
            optimizer=adam_init(initial),
            update=jnp.zeros((), jnp.int32),
            observation_stats=running_stats.init(observation) if self.normalize_observation else None,
            return_stats=return_stats,
            reference=reference_params(self, initial, reference),
            kl_coef=None if self.kl_coef is None else jnp.asarray(self.kl_coef, jnp.float32),
        )

    def agent(self, state: PPOState) -> PPOAgent:
        """What acting reads of the state."""
        return PPOAgent(state.params, state.observation_stats, state.reference)

    def network_params(self, state: PPOState) -> PyTree:
        """The network's parameters, for another run to begin with."""
        return state.params

    def policy(self, greedy: bool = False) -> Policy:
        """Samples actions, or takes the likeliest.

        `act` adds to the extras `log_prob` and `value`; `carry` (the memory fed in) where sequences start inside a rollout;
        `past_return` where rewards are normalised; `kl` and `reference` (action parameters) where there is a reference policy,
        which the likeliest actions are not compared with.
        """
        compares = self.kl_coef is not None and not greedy

        def init(num_rows: int) -> PPOCarry:
            past_return = jnp.zeros(num_rows, jnp.float32) if self.normalize_reward else None
            memory = self.network.initial_carry(num_rows)
            return PPOCarry(memory, memory if compares else None, past_return)

        def forward(agent: PPOAgent, params: PyTree, memory: Carry, inputs: PolicyInput) -> tuple[Carry, PyTree, jax.Array]:
            observation = _normalized(agent.observation_stats, inputs.observation)
            output: Any = self.network.apply(params, memory, observation, inputs.is_first)
            return output

        def act(
            agent: PPOAgent, carry: PPOCarry, inputs: PolicyInput, key: jax.Array
        ) -> tuple[PPOCarry, PyTree, dict[str, PyTree]]:
            memory, action_params, value = forward(agent, agent.params, carry.memory, inputs)
            distribution = self._distribution(action_params, inputs.observation)
            action = distribution.mode() if greedy else distribution.sample(key)
            extras = {"log_prob": distribution.log_prob(action), "value": value}
            if self.sequence_length is not None:
                extras["carry"] = carry.memory
            past_return = None
            if carry.past_return is not None:
                past_return = jnp.where(inputs.is_first, 0.0, self.gamma * carry.past_return + inputs.last_reward)
                extras["past_return"] = past_return
            reference_memory = None
            if compares:
                reference_memory, reference, _ = forward(agent, agent.reference, carry.reference_memory, inputs)
                extras["kl"] = divergence("exact", distribution, self._distribution(reference, inputs.observation), action)
                extras["reference"] = reference
            return PPOCarry(memory, reference_memory, past_return), action, extras

        def value(agent: PPOAgent, carry: PPOCarry, inputs: PolicyInput) -> jax.Array:
            return forward(agent, agent.params, carry.memory, inputs)[2]

        return Policy(init, act, value)

    def update(self, state: PPOState, batch: Batch, key: jax.Array) -> tuple[PPOState, Metrics]:
        """`num_epochs` passes over a batch `[T, B]`, in minibatches drawn anew for each."""
        transition = batch.transition
        weights = mean_weights(transition.mask, self.axes)
        return_stats, reward = self._normalized_reward(state.return_stats, transition, weights)
        if state.kl_coef is not None and self.kl_in == "reward":
            reward = reward - state.kl_coef * transition.extras["kl"]
        value, next_value = transition.extras["value"], transition.extras["next_value"]
        advantage, target = gae(
            reward,
            value,
            next_value,
            transition.terminated,
            transition.truncated,
            gamma=self.gamma,
            lambda_=self.gae_lambda,
        )
        if self.normalize_advantage == "batch":
            advantage = standardize(advantage, weights, self.axes)
        sequences = self._sequences(state, batch, advantage, target)
        optimize = PPO._optimize if self.axes else one_by_one_on_cpu(PPO._optimize)  # sums over axes need all lanes at once
        params, optimizer, metrics = optimize(self, state, sequences, key)
        metrics["explained_variance"] = 1.0 - weighted_variance(target - value, weights, self.axes) / (
            weighted_variance(target, weights, self.axes) + 1e-8
        )
        metrics["value"] = weighted_mean(value, weights, self.axes)
        reference, kl_coef = state.reference, state.kl_coef
        if kl_coef is not None:
            metrics |= {"kl": weighted_mean(transition.extras["kl"], weights, self.axes), "kl_coef": kl_coef}
            reference, kl_coef = followed(self, state, params, metrics["kl"])
        state = PPOState(
            params=params,
            optimizer=optimizer,
            update=state.update + 1,
            observation_stats=self._updated(state.observation_stats, transition.observation, transition.mask),
            return_stats=return_stats,
            reference=reference,
            kl_coef=kl_coef,
        )
        return state, metrics

    def _normalized_reward(
        self, stats: RunningStats | None, transition: Transition, weights: jax.Array
    ) -> tuple[RunningStats | None, jax.Array]:
        """Rewards [T, B] in units of the return's deviation, and the statistics with this batch."""
        if stats is None:
            return None, transition.reward
        discounted_return = self.gamma * transition.extras["past_return"] + transition.reward
        num_samples = transition.mask.sum(dtype=jnp.float32)
        stats = running_stats.update(stats, discounted_return, weights, num_samples, self.axes)
        scaled = transition.reward * jax.lax.rsqrt(stats.variance + 1e-8)
        return stats, jnp.clip(scaled, -_MAX_SCALED_REWARD, _MAX_SCALED_REWARD)

    def _updated(self, stats: RunningStats | None, observation: PyTree, mask: jax.Array) -> RunningStats | None:
        """Statistics with the observations [T, B, ...] of a batch. Those that acted served the update: ratios start at 1."""
        if stats is None:
            return None
        weights, num_samples = mean_weights(mask, self.axes), mask.sum(dtype=jnp.float32)
        return running_stats.update(stats, observation, weights, num_samples, self.axes)

    def _sequences(self, state: PPOState, batch: Batch, advantage: jax.Array, target: jax.Array) -> Sequences:
        """Cuts a batch into N sequences of consecutive steps, each with the memory before its first step."""
        transition = batch.transition
        num_steps = transition.reward.shape[0]
        length = minibatch.sequence_length(self.network.memory, self.sequence_length, num_steps)
        memory = minibatch.starting_memory(batch.carry.memory, transition.extras.get("carry"), length, num_steps)
        steps = Sequences(
            observation=_normalized(state.observation_stats, transition.observation),
            is_first=transition.is_first,
            action=transition.action,
            log_prob=transition.extras["log_prob"],
            value=transition.extras["value"],
            advantage=advantage,
            target=target,
            mask=transition.mask,
            reference=transition.extras.get("reference") if self.kl_in == "loss" else None,
            memory=(),
        )
        return minibatch.split_sequences(steps, length)._replace(memory=memory)

    def _optimize(self, state: PPOState, sequences: Sequences, key: jax.Array) -> tuple[PyTree, optax.OptState, Metrics]:
        """Steps through all minibatches of all epochs. Metrics are means over the applied ones."""
        optimize = within_tokens(self.network, PPO._optimize_within, sequences.observation, self.axes)
        return optimize(self, state, sequences, key)

    def _optimize_within(
        self, state: PPOState, sequences: Sequences, key: jax.Array, *, num_tokens: int | None
    ) -> tuple[PyTree, optax.OptState, Metrics]:
        clip_eps = anneal(self.clip_eps, self.clip_eps_final, state.update, self.anneal_updates)
        entropy_coef = anneal(self.entropy_coef, self.entropy_coef_final, state.update, self.anneal_updates)

        def loss(params: PyTree, items: Sequences) -> tuple[jax.Array, Metrics]:
            return self._loss(params, items, clip_eps, entropy_coef, state.kl_coef, num_tokens)

        params, optimizer, metrics = minimize(self, loss, state.params, state.optimizer, sequences, key, update=state.update)
        return params, optimizer, metrics | {"entropy_coef": jnp.asarray(entropy_coef, jnp.float32)}

    def _loss(
        self,
        params: PyTree,
        items: Sequences,
        clip_eps: jax.Array | float,
        entropy_coef: jax.Array | float,
        kl_coef: jax.Array | None = None,
        num_tokens: int | None = None,
    ) -> tuple[jax.Array, Metrics]:
        """Eq. 9, to be minimised, and its parts; where the batch is spread over axes, what to sum over them."""
        memory = items.memory
        items = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items._replace(memory=()))  # [L, rows, ...]
        weights = mean_weights(items.mask, self.axes)
        output: Any = self.network.apply(params, memory, items.observation, items.is_first, num_tokens, method="sequence")
        _, action_params, value = output
        distribution = self._distribution(action_params, items.observation)
        log_ratio = distribution.log_prob(items.action) - items.log_prob
        advantage = items.advantage
        if self.normalize_advantage == "minibatch":
            advantage = standardize(advantage, weights, self.axes)
        if self.value_clip_eps is None:
            value_errors = squared_error(value, items.target)
        else:
            value_errors = clipped_squared_error(value, items.target, items.value, self.value_clip_eps)

        policy_loss = weighted_mean(clipped_surrogate(log_ratio, advantage, clip_eps), weights)
        value_loss = weighted_mean(value_errors, weights)
        entropy = weighted_mean(distribution.entropy(), weights)
        loss = policy_loss + self.value_coef * value_loss - entropy_coef * entropy
        if kl_coef is not None and items.reference is not None:
            reference = self._distribution(items.reference, items.observation)
            loss += kl_coef * weighted_mean(divergence("exact", distribution, reference, items.action), weights)
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": weighted_mean(kl_estimate(log_ratio), weights),
            "clip_fraction": weighted_mean(is_clipped(log_ratio, clip_eps), weights),
        }

    def _distribution(self, action_params: PyTree, observation: PyTree) -> Distribution:
        return action_distribution(self.network, action_params, observation)


def _normalized(stats: RunningStats | None, observation: PyTree) -> PyTree:
    return observation if stats is None else running_stats.normalize(stats, observation)
