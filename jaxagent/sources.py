"""Where a learner's batches come from."""

from dataclasses import dataclass
from typing import Protocol

import jax

from jaxagent import rollout
from jaxagent.envs.vector import VectorEnv
from jaxagent.rollout import RolloutState
from jaxagent.types import Agent, Batch, Metrics, Policy, PyTree


class Source(Protocol):
    """Static; its state holds arrays only. `policy` is the learner's, `params` are the environment's."""

    def init(self, key: jax.Array, policy: Policy, params: PyTree) -> PyTree: ...

    def next(
        self, state: PyTree, policy: Policy, agent: Agent, params: PyTree, key: jax.Array
    ) -> tuple[PyTree, Batch, Metrics]:
        """Returns the next state, a batch and metrics of how it came about."""
        ...


@dataclass(frozen=True)
class OnPolicy:
    """Consecutive pieces of `num_steps` steps in every environment, acted by the current agent."""

    vector_env: VectorEnv
    num_steps: int

    def init(self, key: jax.Array, policy: Policy, params: PyTree) -> RolloutState:
        return rollout.init(self.vector_env, policy, key, params)

    def next(
        self, state: RolloutState, policy: Policy, agent: Agent, params: PyTree, key: jax.Array
    ) -> tuple[RolloutState, Batch, Metrics]:
        return rollout.unroll(self.vector_env, policy, agent, state, params, key, num_steps=self.num_steps)
