"""What learners have in common: checks of their fields, the distribution of actions, and gradient steps over minibatches."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import across, minibatch
from jaxagent.ops.distributions import Distribution, from_action_space
from jaxagent.ops.fit import fitted, ladder
from jaxagent.ops.kl import adapted, divergence
from jaxagent.ops.masked import mean_weights, weighted_mean
from jaxagent.ops.optimizer import adam_step, anneal
from jaxagent.types import (
    Box,
    Carry,
    DictSpace,
    Discrete,
    EnvSpec,
    Metrics,
    Policy,
    PolicyInput,
    PyTree,
    Space,
    Transition,
    is_count,
)

Loss = Callable[[PyTree, Any], tuple[jax.Array, Metrics]]  # of parameters and items [n, ...]

# Least and greatest value of the traced fields, by name, and where an end does not belong to them, how the range is written.
_RANGES: dict[str, tuple[float, float] | tuple[float, float, str]] = {
    "lr": (0.0, math.inf),
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "clip_eps": (0.0, math.inf),
    "entropy_coef": (-math.inf, math.inf),
    "value_coef": (0.0, math.inf),
    "max_grad_norm": (0.0, math.inf),
    "lr_final": (0.0, math.inf),
    "clip_eps_final": (0.0, math.inf),
    "entropy_coef_final": (-math.inf, math.inf),
    "anneal_updates": (1.0, math.inf),
    "value_clip_eps": (0.0, math.inf),
    "target_kl": (0.0, math.inf),
    "clip_eps_high": (0.0, math.inf),
    "std_floor": (0.0, math.inf),
    "dual_clip": (1.0, math.inf),
    "kl_coef": (0.0, math.inf),
    "kl_target": (0.0, math.inf, "(]"),
    "reference_every": (1.0, math.inf),
    "turn_weight": (0.0, math.inf),
    "turn_gamma": (0.0, 1.0),
    "max_importance": (0.0, math.inf, "(]"),
    "patience": (1.0, math.inf),
    "min_return": (-math.inf, math.inf),
    "adam_b1": (0.0, 1.0, "[)"),
    "adam_b2": (0.0, 1.0, "[)"),
    "adam_eps": (0.0, math.inf, "(]"),
}


_COUNTS = ("num_epochs", "num_minibatches", "num_microbatches", "sequence_length", "oversample")


def check_fields(learner: Any) -> None:
    """Raises ValueError for a field out of range, a sequence length without memory, or a final value never reached."""
    for field, bounds in _RANGES.items():
        value = getattr(learner, field, None)
        if value is not None and not isinstance(value, jax.core.Tracer):
            _check_range(field, value, *bounds)
    for field in _COUNTS:
        value = getattr(learner, field, None)
        if value is not None and not is_count(value):
            raise ValueError(f"{field}: expected a positive integer, got {value}")
    if getattr(learner, "sequence_length", None) is not None and not learner.network.memory:
        raise ValueError(f"sequence_length: expected None for a network without memory, got {learner.sequence_length}")
    if getattr(learner, "kl_coef", None) is None:
        for field in ("kl_target", "reference_every"):
            if getattr(learner, field, None) is not None:
                raise ValueError(f"{field}: expected None without kl_coef, got {getattr(learner, field)}")
    finals = [field for field in _RANGES if field.endswith("_final") and getattr(learner, field, None) is not None]
    if finals and learner.anneal_updates is None:
        raise ValueError(f"anneal_updates: expected a number of updates where {finals[0]} is set, got None")


def _check_range(field: str, value: Any, low: float, high: float, ends: str = "[]") -> None:
    found = np.asarray(value)
    is_within = found.dtype.kind in "iuf" and np.all(found > low if ends[0] == "(" else found >= low)
    if not (is_within and np.all(found < high if ends[1] == ")" else found <= high)):
        raise ValueError(f"{field}: expected a number in {ends[0]}{low:g}, {high:g}{ends[1]}, got {value!r}")


def initial_params(network: ActorCritic, key: jax.Array, spec: EnvSpec, given: PyTree) -> PyTree:
    """Fresh parameters, or copies of those `given`.

    Raises:
      ValueError: the network is not for such an environment, or they are not for the network.
    """
    network.check_spec(spec)
    return network.initial_params(key) if given is None else network.checked_params(given)


def actor(
    network: ActorCritic, greedy: bool, extras: Callable[[Carry, PyTree, Distribution, PyTree], dict[str, PyTree]]
) -> Policy:
    """A policy without a critic, whose agent is the network's parameters: samples actions, or takes the likeliest.

    `extras` are told the memory before the step, the action's parameters, its distribution and the action.
    """

    def act(agent: PyTree, carry: Carry, inputs: PolicyInput, key: jax.Array) -> tuple[Carry, PyTree, dict[str, PyTree]]:
        output: Any = network.apply(agent, carry, inputs.observation, inputs.is_first)
        memory, action_params, _ = output
        distribution = action_distribution(network, action_params, inputs.observation)
        action = distribution.mode() if greedy else distribution.sample(key)
        return memory, action, extras(carry, action_params, distribution, action)

    return Policy(network.initial_carry, act)


def reference_params(learner: Any, initial: PyTree, given: PyTree) -> PyTree:
    """Parameters that the policy is kept near: those given, or the initial ones; None for a learner without `kl_coef`.

    Raises:
      ValueError: they are given to such a learner, or are not for the network.
    """
    if given is None:
        return None if learner.kl_coef is None else initial
    if learner.kl_coef is None:
        raise ValueError("reference: expected None without kl_coef")
    return learner.network.checked_params(given, field="reference")


def followed(learner: Any, state: Any, params: PyTree, kl: jax.Array) -> tuple[PyTree, jax.Array]:
    """The reference and the coefficient after an update to `params`, before which there was this divergence."""
    reference, coef = state.reference, state.kl_coef
    if learner.kl_target is not None:
        coef = adapted(coef, kl, learner.kl_target)
    if learner.reference_every is not None:
        is_due = (state.update + 1) % jnp.asarray(learner.reference_every, jnp.int32) == 0
        reference = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), params, reference)
    return reference, coef


def check_batch(learner: Any, *, num_steps: int, num_envs: int) -> None:
    """Raises ValueError if batches `[num_steps, num_envs]` cannot be cut into equal minibatches."""
    minibatch.check_sizes(
        num_steps=num_steps,
        num_envs=num_envs,
        length=minibatch.sequence_length(learner.network.memory, learner.sequence_length, num_steps),
        num_minibatches=learner.num_minibatches,
    )


def action_distribution(network: ActorCritic, action_params: PyTree, observation: PyTree) -> Distribution:
    """The distribution that a network's output stands for, without what an `action_mask` in the observation rules out."""
    space = network.observation
    masked = isinstance(space, DictSpace) and "action_mask" in space
    return from_action_space(network.action, action_params, observation["action_mask"] if masked else None)


def check_recorded(network: ActorCritic, transition: Transition) -> None:
    """Checks recorded steps [T, B, ...], concrete arrays, before anything is traced: they are what the network takes and gives.

    Raises:
      ValueError: a part is missing, of another shape, or holds a number (such as a token) outside of its range.
    """
    shape = np.shape(transition.mask)
    _check_part(network.observation, transition.observation, "observation", shape)
    _check_part(network.action, transition.action, "action", shape)


def _check_part(space: Space, value: Any, path: str, batch: tuple[int, ...]) -> None:
    if isinstance(space, DictSpace):
        for name, entry in space.fields:
            if not isinstance(value, Mapping) or name not in value:
                raise ValueError(f"{path}.{name}: missing")
            _check_part(entry, value[name], f"{path}.{name}", batch)
        return
    found = np.asarray(value)
    if not isinstance(space, Box) and found.dtype.kind not in "iu":
        raise ValueError(f"{path}: expected integers, got {found.dtype}")
    if found.shape != (*batch, *space.shape):
        raise ValueError(f"{path}: expected an array of shape {(*batch, *space.shape)}, got {found.shape}")
    if isinstance(space, Box):
        return
    most = np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1
    wrong = np.argwhere((found < 0) | (found > most))
    if wrong.size:
        place = tuple(map(int, wrong[0]))
        raise ValueError(f"{path}: expected 0 to {int(np.max(most))}, got {found[place]} at {list(place)}")


def within_tokens(
    network: ActorCritic, function: Callable[..., Any], observation: PyTree, axes: across.Axes = ()
) -> Callable[..., Any]:
    """`function(*arguments, num_tokens=n)`, as a function of the arguments, where n bounds the tokens of sequences [N, L, ...].

    It is None unless a transformer reads tokens.
    """
    if not network.reads_tokens:
        return partial(function, num_tokens=None)

    def within(size: tuple[int], *arguments: PyTree) -> Any:
        return function(*arguments, num_tokens=size[0])

    _, length, width = observation["tokens"].shape
    most = jnp.max(jnp.sum(observation["num_tokens"], axis=1))
    return fitted(within, [(n,) for n in ladder(length * width)], [most], axes=axes)


def within_episodes(
    function: Callable[..., Any], learner: Any, transition: Transition, *arguments: PyTree, axes: across.Axes = ()
) -> Any:
    """`function(learner, transition, *arguments)` of whole episodes [T, B], cut to about as many steps as the longest has.

    What it returns must not depend on T. The network of the learner bounds the tokens of a row, if it reads any, likewise.
    """
    num_steps, mask, network = transition.mask.shape[0], transition.mask, learner.network
    sizes: list[tuple[int, ...]] = [(length,) for length in ladder(num_steps)]
    needed = [jnp.max(jnp.sum(mask, axis=0))]
    bound = network.episode_tokens
    if network.reads_tokens and bound is not None:
        width = transition.observation["tokens"].shape[-1]
        sizes = [(n, min(n * width, -(-bound * n // num_steps) + width)) for (n,) in sizes]
        needed.append(jnp.max(jnp.sum(jnp.where(mask, transition.observation["num_tokens"], 0), axis=0)))

    def within(size: tuple[int, ...], learner: Any, transition: Transition, *arguments: PyTree) -> Any:
        length, *num_tokens = size
        if num_tokens:
            learner = learner.replace(network=network.clone(episode_tokens=num_tokens[0]))
        return function(learner, jax.tree.map(lambda x: x[:length], transition), *arguments)

    return fitted(within, sizes, needed, axes=axes)(learner, transition, *arguments)


def of_episodes(network: ActorCritic, params: PyTree, steps: Any) -> PyTree:
    """Action parameters for whole episodes, with `observation` and `is_first` [T, B, ...]."""
    output: Any = network.apply(params, steps.observation, steps.is_first, method="episodes")
    return output[0]


def mean_divergence(
    network: ActorCritic, action_params: PyTree, reference: PyTree, transition: Transition, axes: across.Axes = ()
) -> jax.Array:
    """Exact `KL(policy || reference)` in nats a step, from the action parameters of both, over the steps that count."""
    ours, theirs = (action_distribution(network, given, transition.observation) for given in (action_params, reference))
    exact = jnp.where(transition.mask, divergence("exact", ours, theirs, None), 0.0)
    return weighted_mean(exact, mean_weights(transition.mask, axes), axes)


def cloning_loss(
    network: ActorCritic,
    action_params: PyTree,
    steps: Any,
    weights: jax.Array,
    near: tuple[PyTree, jax.typing.ArrayLike] | None = None,
) -> tuple[jax.Array, Metrics]:
    """The negative log likelihood of the actions of some steps, and what to look at beside it.

    Args:
      action_params: what the network makes of the steps.
      steps: with `observation` and `action`, leaves [T, N, ...].
      weights: [T, N]; they sum to 1.
      near: action parameters of a policy to stay near, and the weight of the exact divergence from it.
    """
    distribution = action_distribution(network, action_params, steps.observation)
    loss = -weighted_mean(distribution.log_prob(steps.action), weights)
    if near is not None:
        reference, coef = near
        away = divergence("exact", distribution, action_distribution(network, reference, steps.observation), steps.action)
        loss += coef * weighted_mean(away, weights)
    agrees = distribution.mode() == steps.action
    agrees = agrees.all(axis=tuple(range(weights.ndim, agrees.ndim))).astype(jnp.float32)
    return loss, {
        "loss": loss,
        "accuracy": weighted_mean(agrees, weights),
        "entropy": weighted_mean(distribution.entropy(), weights),
    }


def minimize(
    learner: Any,
    loss: Loss,
    params: PyTree,
    optimizer: optax.OptState,
    items: Any,
    key: jax.Array,
    *,
    update: jax.Array,
    num_microbatches: int = 1,
    prepared: Callable[[Any], Any] = lambda items: items,
) -> tuple[PyTree, optax.OptState, Metrics]:
    """One gradient step for every minibatch of every epoch, drawn anew for each. Metrics are means over the steps.

    Args:
      learner: its `num_epochs`, `num_minibatches`, `lr`, `max_grad_norm` and Adam's fields count, and if it has them `axes` and
        `target_kl`: minibatches after the first whose metric `approx_kl` exceeds `target_kl` are skipped, that one too.
      loss: to be minimised, and its metrics; where the batch is spread over axes, what to sum over them.
      items: leaves [N, ...].
      update: index of the update, for annealing.
      num_microbatches: parts that a minibatch's gradient is the sum of, one after the other, to need less memory. The loss of a
        minibatch must then be the sum of that of its parts.
      prepared: what to make of a minibatch before it is cut into them.
    """
    lr = anneal(learner.lr, learner.lr_final, update, learner.anneal_updates)
    target_kl, axes = getattr(learner, "target_kl", None), getattr(learner, "axes", ())
    num_items = jax.tree.leaves(items)[0].shape[0]
    indices = minibatch.minibatch_indices(
        key, num_items, num_epochs=learner.num_epochs, num_minibatches=learner.num_minibatches
    )

    def gradients_of(params: PyTree, rows: jax.Array) -> tuple[PyTree, Metrics]:
        taken, gradient = prepared(minibatch.take(items, rows)), jax.grad(loss, has_aux=True)
        if num_microbatches == 1:
            return gradient(params, taken)
        parts = jax.tree.map(lambda x: x.reshape(num_microbatches, -1, *x.shape[1:]), taken)
        return jax.tree.map(lambda x: x.sum(0), jax.lax.map(lambda part: gradient(params, part), parts))

    def step(loop: tuple[PyTree, Any, jax.Array], rows: jax.Array) -> tuple[tuple[PyTree, Any, jax.Array], Metrics]:
        params, optimizer, active = loop
        gradients, metrics = across.total(gradients_of(params, rows), axes)
        stepped_params, stepped_optimizer, metrics["grad_norm"] = adam_step(
            params,
            gradients,
            optimizer,
            lr=lr,
            max_norm=learner.max_grad_norm,
            b1=learner.adam_b1,
            b2=learner.adam_b2,
            eps=learner.adam_eps,
        )
        if target_kl is None:
            return (stepped_params, stepped_optimizer, active), metrics | {"applied_fraction": jnp.float32(1.0)}
        active &= metrics["approx_kl"] <= target_kl
        applied = jax.tree.map(
            lambda new, old: jnp.where(active, new, old), (stepped_params, stepped_optimizer), (params, optimizer)
        )
        return (*applied, active), metrics | {"applied_fraction": active.astype(jnp.float32)}

    (params, optimizer, _), metrics = jax.lax.scan(step, (params, optimizer, jnp.bool_(True)), indices)
    weights = mean_weights(metrics["applied_fraction"] > 0)
    means = {name: weighted_mean(values, weights) for name, values in metrics.items()}
    means["applied_fraction"] = metrics["applied_fraction"].mean()
    return params, optimizer, means | {"lr": jnp.asarray(lr, jnp.float32)}
