"""Group relative policy optimisation (Shao et al. 2024) and its relatives: no critic, episodes are compared within a group.

Letters: `T` time, `B` episodes, one a row, `G` episodes a group, `S` steps that count.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagent.learners.common import (
    action_distribution,
    actor,
    check_fields,
    followed,
    initial_params,
    mean_divergence,
    minimize,
    of_episodes,
    reference_params,
    within_episodes,
)
from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import across, groups, kl
from jaxagent.ops.distributions import Distribution
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights, weighted_mean
from jaxagent.ops.optimizer import adam_init
from jaxagent.ops.policy_losses import clipped_importance, clipped_surrogate, kl_estimate, of_sequences
from jaxagent.types import Batch, Carry, EnvSpec, Metrics, Policy, PyTree, Transition, is_count

LOSSES = ("grpo", "dr_grpo", "bnpo", "dapo", "gspo", "cispo")


class GRPOState(NamedTuple):
    params: PyTree
    optimizer: optax.OptState
    update: jax.Array  # int32, updates done
    reference: PyTree  # parameters that the policy is kept near; None without
    kl_coef: jax.Array | None  # float32, as it has adapted; None without a reference
    acting: PyTree  # parameters of the last `lag` updates, [lag, ...], the oldest first; None without a lag


class Episodes(NamedTuple):
    """What the loss reads. Leaves are `[B, T, ...]`."""

    observation: PyTree
    is_first: jax.Array
    action: PyTree
    log_prob: jax.Array  # under the parameters before the update
    importance: jax.Array  # weight of a step, 1 where the parameters before the update acted
    advantage: jax.Array
    weight: jax.Array  # of a step in the loss; those of all episodes together make up the denominator
    share: jax.Array  # of a step in what is logged: one of all that count
    mask: jax.Array
    reference: PyTree  # action parameters of the reference policy; None without


@struct.dataclass(kw_only=True)
class GRPO:
    """The learner. Fields set to None are off.

    Attributes:
      lr: learning rate, of Adam.
      clip_eps: bound on the fall of an action's probability ratio.
      clip_eps_high: bound on its rise; as `clip_eps` if None.
      entropy_coef: weight of the entropy bonus.
      max_grad_norm: bound on the global norm of the gradients.
      std_floor: least standard deviation that advantages are divided by.
      dual_clip: bound on what a bad action's rising ratio costs, in units of its advantage.
      kl_coef: weight of `KL(policy || reference)` in nats a step, at first where there is a target.
      kl_target: divergence, in nats a step, to which the weight adapts.
      reference_every: updates after which the reference becomes the policy that there is then.
      turn_weight: weight of step-level advantages, from comparing steps in the same situation (GiGPO, Feng et al. 2025).
      turn_gamma: discount of the returns that they compare.
      max_importance: bound on the weight of a step that older parameters acted; only with a lag.
      lr_final: what lr changes to, linearly with the index of the update; constant if None.
      anneal_updates: index of the update at which it is reached.
      adam_b1, adam_b2, adam_eps: Adam's decay rates and the number that keeps it from dividing by zero.
      network: the actor-critic, of which the actor learns.
      group_size: G, episodes on one level.
      loss: what a step's loss is divided by, and how ratios are bounded. `grpo`: the length of its episode, and the episodes.
        `dr_grpo`: T, and the episodes (Liu et al. 2025). `dapo`: all steps (Yu et al. 2025). `bnpo`: the steps of the
        minibatch. `gspo`: as `grpo`, with one ratio an episode (Zheng et al. 2025). `cispo`: as `dapo`, and no action loses its
        gradient (MiniMax 2025).
      scale: what advantages are divided by: standard deviation of the `group`, of the `batch`, or `none`.
      leave_one_out: whether an episode is compared with the others alone (RLOO, Ahmadian et al. 2024).
      anchor: what makes two steps the same situation: the environment's `state`, or the `observation`.
      kl_estimator: `exact`, from the whole distribution, or `k1`, `k2`, `k3` from the action taken.
      kl_in: where the divergence counts: in the `loss`, or in the `reward`.
      lag: updates by which the parameters that act are older, as when acting and learning are apart. Steps are then weighted by
        truncated importance (Espeholt et al. 2018).
      oversample: groups played for each that is learnt from: those with the most varied returns (Yu et al. 2025).
      num_epochs: passes over a batch.
      num_minibatches: gradient steps a pass.
      num_microbatches: parts that the gradient of a minibatch is added up from, to need less memory.
      axes: mapped axes that a batch is spread over, where `update` takes a part of it; a `Trainer` with a mesh sets them.
    """

    # traced
    lr: float = 3e-4
    clip_eps: float = 0.2
    clip_eps_high: float | None = 0.28
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    std_floor: float = 1e-3
    dual_clip: float | None = 3.0
    kl_coef: float | None = None
    kl_target: float | None = None
    reference_every: float | None = None
    turn_weight: float | None = None
    turn_gamma: float = 0.95
    max_importance: float = 2.0
    lr_final: float | None = None
    anneal_updates: float | None = None
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-5
    # static
    network: ActorCritic = struct.field(pytree_node=False)
    group_size: int = struct.field(pytree_node=False, default=16)
    loss: Literal["grpo", "dr_grpo", "bnpo", "dapo", "gspo", "cispo"] = struct.field(pytree_node=False, default="dapo")
    scale: groups.Scale = struct.field(pytree_node=False, default="group")
    leave_one_out: bool = struct.field(pytree_node=False, default=False)
    anchor: Literal["state", "observation"] = struct.field(pytree_node=False, default="state")
    kl_estimator: kl.Estimator = struct.field(pytree_node=False, default="exact")
    kl_in: Literal["loss", "reward"] = struct.field(pytree_node=False, default="loss")
    lag: int = struct.field(pytree_node=False, default=0)
    oversample: int = struct.field(pytree_node=False, default=1)
    num_epochs: int = struct.field(pytree_node=False, default=2)
    num_minibatches: int = struct.field(pytree_node=False, default=4)
    num_microbatches: int = struct.field(pytree_node=False, default=1)
    axes: across.Axes = struct.field(pytree_node=False, default=())

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. What is being traced is not looked at."""
        check_fields(self)
        choices = {"loss": LOSSES, "scale": groups.SCALES, "anchor": ("state", "observation")}
        choices |= {"kl_estimator": kl.ESTIMATORS, "kl_in": ("loss", "reward")}
        for field, known in choices.items():
            if getattr(self, field) not in known:
                raise ValueError(f"{field}: expected one of {', '.join(known)}, got {getattr(self, field)!r}")
        if not is_count(self.group_size, 2):
            raise ValueError(f"group_size: expected at least 2 episodes to compare, got {self.group_size}")
        if not is_count(self.lag, 0):
            raise ValueError(f"lag: expected a number of updates, got {self.lag}")

    def validate_batch(self, *, num_steps: int, num_envs: int) -> None:
        """Raises ValueError if batches of so many episodes cannot be cut into groups and equal minibatches."""
        del num_steps
        if num_envs % self.group_size:
            raise ValueError(f"num_envs: expected a multiple of the {self.group_size} episodes of a group, got {num_envs}")
        parts = self.num_minibatches * self.num_microbatches
        if num_envs % parts:
            field = "num_minibatches" if self.num_microbatches == 1 else "num_microbatches"
            raise ValueError(f"{field}: expected {num_envs} episodes to be cut into equal parts, got {parts}")

    def init(self, key: jax.Array, spec: EnvSpec, *, params: PyTree = None, reference: PyTree = None) -> GRPOState:
        """The state before the first update, from `params` if given. The reference is `reference`, or these parameters.

        Raises:
          ValueError: the network is not for such an environment, or `params` or `reference` are not for the network.
        """
        initial = initial_params(self.network, key, spec, params)
        return GRPOState(
            params=initial,
            optimizer=adam_init(initial),
            update=jnp.zeros((), jnp.int32),
            reference=reference_params(self, initial, reference),
            kl_coef=None if self.kl_coef is None else jnp.asarray(self.kl_coef, jnp.float32),
            acting=jax.tree.map(lambda x: jnp.stack([x] * self.lag), initial) if self.lag else None,
        )

    def agent(self, state: GRPOState) -> PyTree:
        """What acting reads of the state: parameters, `lag` updates old."""
        return state.params if state.acting is None else jax.tree.map(lambda x: x[0], state.acting)

    def network_params(self, state: GRPOState) -> PyTree:
        """The network's parameters, for another run to begin with."""
        return state.params

    def policy(self, greedy: bool = False) -> Policy:
        """Samples actions, or takes the likeliest.

        `act` adds to the extras `log_prob` and `entropy`, and `action_params` where they are compared with a reference.
        """

        def extras(carry: Carry, action_params: PyTree, distribution: Distribution, action: PyTree) -> dict[str, PyTree]:
            found = {"log_prob": distribution.log_prob(action), "entropy": distribution.entropy()}
            return found | ({} if self.kl_coef is None else {"action_params": action_params})

        return actor(self.network, greedy, extras)

    def update(self, state: GRPOState, batch: Batch, key: jax.Array) -> tuple[GRPOState, Metrics]:
        """`num_epochs` passes over a batch `[T, B]` of whole episodes, in minibatches of episodes drawn anew for each."""
        optimize = GRPO._optimize if self.axes else one_by_one_on_cpu(GRPO._optimize)  # sums over axes need all lanes at once
        params, optimizer, metrics = optimize(self, state, batch.transition, key)
        reference, kl_coef, acting = state.reference, state.kl_coef, state.acting
        if kl_coef is not None:
            metrics["kl_coef"] = kl_coef
            reference, kl_coef = followed(self, state, params, metrics["kl"])
        if acting is not None:
            acting = jax.tree.map(lambda queue, now: jnp.concatenate([queue[1:], now[None]]), acting, state.params)
        return GRPOState(params, optimizer, state.update + 1, reference, kl_coef, acting), metrics

    def _optimize(self, state: GRPOState, transition: Transition, key: jax.Array) -> tuple[PyTree, optax.OptState, Metrics]:
        """Steps through all minibatches of all epochs."""
        optimize = partial(GRPO._optimize_within, num_steps=transition.mask.shape[0])
        return within_episodes(optimize, self, transition, state, key, axes=self.axes)

    def _optimize_within(
        self, transition: Transition, state: GRPOState, key: jax.Array, *, num_steps: int
    ) -> tuple[PyTree, optax.OptState, Metrics]:
        episodes, measured = self._episodes(state, transition, num_steps=num_steps)

        def loss(params: PyTree, items: Episodes) -> tuple[jax.Array, Metrics]:
            return self._loss(params, items, state.kl_coef)

        params, optimizer, metrics = minimize(
            self,
            loss,
            state.params,
            state.optimizer,
            episodes,
            key,
            update=state.update,
            num_microbatches=self.num_microbatches,
            prepared=self._prepared,
        )
        return params, optimizer, metrics | measured

    def _episodes(self, state: GRPOState, transition: Transition, *, num_steps: int) -> tuple[Episodes, Metrics]:
        """What is learnt from a batch, whose rollouts had `num_steps` steps, and what can be said about it beforehand."""
        mask, extras = transition.mask, transition.extras
        reward, counts = jnp.where(mask, transition.reward, 0.0), mean_weights(mask, self.axes)
        metrics = {"entropy": weighted_mean(jnp.where(mask, extras["entropy"], 0.0), counts, self.axes)}
        log_prob, action_params = extras["log_prob"], extras.get("action_params")
        if self.lag:
            action_params = of_episodes(self.network, state.params, transition)
            log_prob = self._distribution(action_params, transition).log_prob(transition.action)
        importance = jnp.minimum(jnp.exp(log_prob - extras["log_prob"]), self.max_importance)
        if self.lag:
            metrics["importance"] = weighted_mean(jnp.where(mask, importance, 0.0), counts, self.axes)
        reference = None
        if self.kl_coef is not None:
            reference = of_episodes(self.network, state.reference, transition)
            metrics["kl"] = mean_divergence(self.network, action_params, reference, transition, self.axes)
            if self.kl_in == "reward" and state.kl_coef is not None:
                ours, theirs = self._distribution(action_params, transition), self._distribution(reference, transition)
                paid = kl.divergence(self.kl_estimator, ours, theirs, transition.action)
                reward = jnp.where(mask, reward - state.kl_coef * paid, 0.0)
        advantage, kept, metrics["zero_variance_rate"] = self._advantages(transition, reward)
        steps = Episodes(
            observation=transition.observation,
            is_first=transition.is_first,
            action=transition.action,
            log_prob=log_prob,
            importance=importance,
            advantage=advantage,
            weight=self._weights(mask, kept, num_steps),
            share=mean_weights(mask & kept, self.axes),
            mask=mask,
            reference=reference,
        )
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), jax.lax.stop_gradient(steps)), metrics

    def _advantages(self, transition: Transition, reward: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Advantages [T, B], the episodes that say anything [B], and the share of groups that do not."""
        mask = transition.mask
        earned = jnp.sum(jnp.where(mask, transition.reward, 0.0), axis=0)
        settings: dict[str, Any] = {"leave_one_out": self.leave_one_out, "floor": self.std_floor, "axes": self.axes}
        kept = groups.compare(earned, self.group_size, scale="none", **settings).varies
        dropped = 1.0 - weighted_mean(kept.astype(jnp.float32), mean_weights(jnp.ones_like(kept), self.axes), self.axes)
        paid = jnp.sum(reward, axis=0)
        of_episode = groups.compare(paid, self.group_size, scale=self.scale, counted=kept, **settings).advantage
        advantage = jnp.where(mask & kept, of_episode, 0.0)
        if self.turn_weight is not None:
            to_go = groups.returns_to_go(reward, mask, gamma=self.turn_gamma)
            situations = transition.extras["situation"]
            of_step = self.turn_weight * groups.compare_steps(
                to_go, situations, mask, self.group_size, scale=self.scale, floor=self.std_floor
            )
            differs = jnp.any(of_step.reshape(-1, *kept.reshape(-1, self.group_size).shape) != 0.0, axis=(0, 2))
            kept = kept | jnp.repeat(differs, self.group_size)
            advantage = advantage + of_step
        return advantage, kept, dropped

    def _weights(self, mask: jax.Array, kept: jax.Array, num_steps: int) -> jax.Array:
        """Of every step in the loss of the whole batch, [T, B]: whoever adds parts of it up needs no other denominator."""
        counted = (mask & kept).astype(jnp.float32)
        if self.loss == "bnpo":  # its denominator is the minibatch's
            return counted
        if self.loss in ("dapo", "cispo"):
            return counted / jnp.maximum(across.total(counted.sum(), self.axes), 1.0)
        episodes = jnp.maximum(across.total(kept.sum(dtype=jnp.float32), self.axes), 1.0)
        length = num_steps if self.loss == "dr_grpo" else jnp.maximum(mask.sum(0, dtype=jnp.float32), 1.0)
        return counted / (episodes * length)

    def _loss(self, params: PyTree, items: Episodes, kl_coef: jax.Array | None) -> tuple[jax.Array, Metrics]:
        """Of some episodes, to be minimised, and its parts: to be summed over the parts of a minibatch, and over axes."""
        items = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items)  # [T, rows, ...]
        distribution = self._distribution(of_episodes(self.network, params, items), items)
        log_prob = distribution.log_prob(items.action)
        log_ratio = jnp.where(items.mask, log_prob - items.log_prob, 0.0)
        weights = items.weight if self.loss == "bnpo" else items.weight * self.num_minibatches
        shares = items.share * self.num_minibatches
        low, high = self.clip_eps, self.clip_eps if self.clip_eps_high is None else self.clip_eps_high
        ratio = of_sequences(log_ratio.T, items.mask.T).T if self.loss == "gspo" else log_ratio
        if self.loss == "cispo":
            logs = jnp.where(items.mask, log_prob, 0.0)
            losses = clipped_importance(ratio, logs, items.advantage, low, clip_eps_high=high)
        else:
            losses = clipped_surrogate(ratio, items.advantage, low, clip_eps_high=high, dual_clip=self.dual_clip)
        policy_loss = weighted_mean(losses * items.importance, weights)
        entropy = weighted_mean(jnp.where(items.mask, distribution.entropy(), 0.0), weights)
        loss = policy_loss - self.entropy_coef * entropy
        if kl_coef is not None and self.kl_in == "loss":
            reference = self._distribution(items.reference, items)
            divergence = kl.divergence(self.kl_estimator, distribution, reference, items.action)
            loss += kl_coef * weighted_mean(jnp.where(items.mask, divergence, 0.0), weights)
        change = jnp.exp(ratio) - 1.0
        return loss, {
            "policy_loss": policy_loss,
            "approx_kl": weighted_mean(kl_estimate(log_ratio), shares),
            "clip_fraction_low": weighted_mean((change < -low).astype(jnp.float32), shares),
            "clip_fraction_high": weighted_mean((change > high).astype(jnp.float32), shares),
        }

    def _prepared(self, items: Episodes) -> Episodes:
        """A minibatch whose weights are complete: bnpo divides by the steps that it has."""
        if self.loss != "bnpo":
            return items
        return items._replace(weight=items.weight / jnp.maximum(across.total(items.weight.sum(), self.axes), 1.0))

    def _distribution(self, action_params: PyTree, steps: Transition | Episodes) -> Distribution:
        return action_distribution(self.network, action_params, steps.observation)
