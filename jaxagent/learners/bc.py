"""Behaviour cloning (Pomerleau 1991): makes a demonstrator's actions likely.

Letters: `T` time, `B` rows, `L` steps of a sequence (1 without memory), `N = T / L * B` sequences.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxagent.envs.base import Environment
from jaxagent.envs.grid import GridEnv
from jaxagent.envs.tools.base import SCRIPTS, ToolEnv
from jaxagent.learners.common import (
    actor,
    check_batch,
    check_fields,
    check_recorded,
    cloning_loss,
    initial_params,
    minimize,
    within_tokens,
)
from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import minibatch
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights
from jaxagent.ops.optimizer import adam_init
from jaxagent.planners.expert import expert
from jaxagent.planners.scripted import scripted
from jaxagent.types import Batch, Carry, EnvSpec, Metrics, Policy, PyTree

DEMONSTRATORS = ("expert", "expert_view", *SCRIPTS)


class Best(NamedTuple):
    """What predicted the held-out demonstrations best so far."""

    params: PyTree
    loss: jax.Array  # float32
    waited: jax.Array  # int32, updates since


class BCState(NamedTuple):
    params: PyTree
    optimizer: optax.OptState
    update: jax.Array  # int32, updates done
    best: Best | None  # None unless demonstrations are held out


class Sequences(NamedTuple):
    """What the loss reads. Leaves are `[N, L, ...]`, but for the memory."""

    observation: PyTree
    is_first: jax.Array
    action: PyTree  # the demonstrator's
    mask: jax.Array
    memory: Carry  # [N, ...] before the first step


@struct.dataclass(kw_only=True)
class BC:
    """The learner. Fields set to None are off.

    Attributes:
      lr: learning rate, of Adam.
      max_grad_norm: bound on the global norm of the gradients.
      lr_final: what lr changes to, linearly with the index of the update; constant if None.
      anneal_updates: index of the update at which it is reached.
      adam_b1, adam_b2, adam_eps: Adam's decay rates and the number that keeps it from dividing by zero.
      network: the actor-critic, of which the actor learns.
      demonstrator: who acts. In grids, `expert` sees the whole world, `expert_view` only what was in its view. In tool worlds
        it is a script: `sft` is right but wordy, `optimal` is not (see `planners.scripted`).
      num_epochs: passes over a batch.
      num_minibatches: gradient steps a pass.
      sequence_length: L with a memory, which starts from the stored one; the whole rollout unless set.
      held_out: share of the environments whose demonstrations are not learnt from. Their loss decides which parameters act: the
        best so far.
      patience: updates without a better one after which learning stops.
    """

    # traced
    lr: float = 1e-3
    max_grad_norm: float = 0.5
    patience: float | None = None
    lr_final: float | None = None
    anneal_updates: float | None = None
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-5
    # static
    network: ActorCritic = struct.field(pytree_node=False)
    demonstrator: Literal["expert", "expert_view", "optimal", "sft", "hack", "random"] = struct.field(
        pytree_node=False, default="expert_view"
    )
    num_epochs: int = struct.field(pytree_node=False, default=1)
    num_minibatches: int = struct.field(pytree_node=False, default=8)
    sequence_length: int | None = struct.field(pytree_node=False, default=None)
    held_out: float | None = struct.field(pytree_node=False, default=None)

    def validate(self) -> None:
        """Raises ValueError that names the wrong field. What is being traced is not looked at."""
        check_fields(self)
        if self.demonstrator not in DEMONSTRATORS:
            raise ValueError(f"demonstrator: expected one of {', '.join(DEMONSTRATORS)}, got {self.demonstrator!r}")
        if self.held_out is not None and not (isinstance(self.held_out, float) and 0.0 < self.held_out < 1.0):
            raise ValueError(f"held_out: expected a share between 0 and 1, got {self.held_out}")
        if self.patience is not None and self.held_out is None:
            raise ValueError(f"patience: expected None without held_out, got {self.patience}")

    def validate_batch(self, *, num_steps: int, num_envs: int) -> None:
        """Raises ValueError if batches `[num_steps, num_envs]` cannot be cut into equal minibatches."""
        left = num_envs - self._num_held_out(num_envs)
        if left in (0, num_envs) and self.held_out is not None:
            raise ValueError(f"held_out: expected a share of {num_envs} environments, some but not all, got {self.held_out}")
        check_batch(self, num_steps=num_steps, num_envs=left)

    def validate_recorded(self, batch: Batch) -> None:
        """Raises ValueError where recorded demonstrations are not of the network's environment: shapes, tokens, actions."""
        check_recorded(self.network, batch.transition)

    def teacher(self, env: Environment) -> Policy:
        """The demonstrator.

        Raises:
          ValueError: it cannot act in such an environment.
        """
        if isinstance(env, GridEnv) and self.demonstrator in ("expert", "expert_view"):
            return expert(env, view_only=self.demonstrator == "expert_view")
        if isinstance(env, ToolEnv) and self.demonstrator in SCRIPTS:
            return scripted(env, self.demonstrator)
        known = "expert or expert_view" if isinstance(env, GridEnv) else ", ".join(SCRIPTS)
        if not isinstance(env, GridEnv | ToolEnv):
            raise ValueError(f"demonstrator: expected an environment of MiniGrid, BabyAI or tools, got {env.spec.name}")
        raise ValueError(f"demonstrator: expected {known} in {env.spec.name}, got {self.demonstrator!r}")

    def init(self, key: jax.Array, spec: EnvSpec, *, params: PyTree = None, reference: PyTree = None) -> BCState:
        """The state before the first update, from `params` if given.

        Raises:
          ValueError: the network is not for such an environment, `params` are not for the network, or there is a `reference`.
        """
        if reference is not None:
            raise ValueError("reference: expected None, since cloning keeps to no reference policy")
        initial = initial_params(self.network, key, spec, params)
        best = None if self.held_out is None else Best(initial, jnp.float32(jnp.finfo(jnp.float32).max), jnp.int32(0))
        return BCState(initial, adam_init(initial), jnp.zeros((), jnp.int32), best)

    def agent(self, state: BCState) -> PyTree:
        """What acting reads of the state: the parameters."""
        return state.params if state.best is None else state.best.params

    def network_params(self, state: BCState) -> PyTree:
        """The network's parameters, for another run to begin with."""
        return self.agent(state)

    def policy(self, greedy: bool = False) -> Policy:
        """Samples actions, or takes the likeliest.

        `act` adds to the extras `carry`, the memory fed in, where sequences start inside a rollout.
        """

        return actor(self.network, greedy, lambda carry, *_: {"carry": carry} if self.sequence_length is not None else {})

    def update(self, state: BCState, batch: Batch, key: jax.Array) -> tuple[BCState, Metrics]:
        """`num_epochs` passes over a batch `[T, B]` of demonstrations, in minibatches drawn anew for each."""
        transition = batch.transition
        num_steps = transition.reward.shape[0]
        length = minibatch.sequence_length(self.network.memory, self.sequence_length, num_steps)
        steps = Sequences(transition.observation, transition.is_first, transition.action, transition.mask, memory=())
        stored = transition.extras.get("carry")
        sequences = minibatch.split_sequences(steps, length)._replace(
            memory=minibatch.starting_memory(batch.carry, stored, length, num_steps)
        )
        return one_by_one_on_cpu(BC._optimize)(self, state, sequences, key, transition.mask)

    def _optimize(self, state: BCState, sequences: Sequences, key: jax.Array, mask: jax.Array) -> tuple[BCState, Metrics]:
        """Steps through all minibatches of all epochs; metrics are means over them. `mask` is the batch's, [T, B]."""
        optimize = within_tokens(self.network, BC._optimize_within, sequences.observation)
        return optimize(self, state, sequences, key, mask)

    def _optimize_within(
        self, state: BCState, sequences: Sequences, key: jax.Array, mask: jax.Array, *, num_tokens: int | None
    ) -> tuple[BCState, Metrics]:
        loss_of = partial(self._loss, num_tokens=num_tokens)
        num_envs, best = mask.shape[1], state.best
        if best is None:
            params, optimizer, metrics = minimize(
                self, loss_of, state.params, state.optimizer, sequences, key, update=state.update
            )
            return BCState(params, optimizer, state.update + 1, None), metrics
        is_held_out = np.arange(sequences.mask.shape[0]) % num_envs < self._num_held_out(num_envs)
        learnt, held_out = (
            minibatch.take(sequences, jnp.asarray(np.flatnonzero(rows))) for rows in (~is_held_out, is_held_out)
        )
        trained = minimize(self, loss_of, state.params, state.optimizer, learnt, key, update=state.update)
        goes_on = jnp.bool_(True) if self.patience is None else best.waited < self.patience
        params, optimizer = jax.tree.map(
            lambda new, old: jnp.where(goes_on, new, old), trained[:2], (state.params, state.optimizer)
        )
        loss = loss_of(params, held_out)[0]
        is_better = goes_on & (loss < best.loss)
        best = Best(
            params=jax.tree.map(lambda new, old: jnp.where(is_better, new, old), params, best.params),
            loss=jnp.where(is_better, loss, best.loss),
            waited=jnp.where(is_better, 0, best.waited + 1),
        )
        metrics = trained[2] | {"held_out_loss": loss, "learns": goes_on.astype(jnp.float32)}
        return BCState(params, optimizer, state.update + 1, best), metrics

    def _num_held_out(self, num_envs: int) -> int:
        return 0 if self.held_out is None else round(self.held_out * num_envs)

    def _loss(self, params: PyTree, items: Sequences, num_tokens: int | None) -> tuple[jax.Array, Metrics]:
        """The negative log likelihood of the demonstrator's actions, and what to look at beside it."""
        memory = items.memory
        items = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items._replace(memory=()))  # [L, rows, ...]
        output: Any = self.network.apply(params, memory, items.observation, items.is_first, num_tokens, method="sequence")
        return cloning_loss(self.network, output[1], items, mean_weights(items.mask))
