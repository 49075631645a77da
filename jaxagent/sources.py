"""Where a learner's batches come from."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax

from jaxagent import rollout
from jaxagent.envs.vector import VectorEnv
from jaxagent.rollout import RolloutState
from jaxagent.types import Agent, Batch, Carry, Metrics, Policy, PolicyInput, PyTree


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


class Onlooking(NamedTuple):
    """Memories of who acts and of who looks on. Leaves are `[B, ...]`."""

    student: Carry
    teacher: Carry


@dataclass(frozen=True)
class Demonstrations:
    """Consecutive pieces of `num_steps` steps in every environment, acted by a teacher, which needs no agent.

    The learner's policy looks on: batches hold its memory, and its extras beside the teacher's actions.
    """

    vector_env: VectorEnv
    num_steps: int
    teacher: Policy

    def init(self, key: jax.Array, policy: Policy, params: PyTree) -> RolloutState:
        return rollout.init(self.vector_env, self._acting(policy), key, params)

    def next(
        self, state: RolloutState, policy: Policy, agent: Agent, params: PyTree, key: jax.Array
    ) -> tuple[RolloutState, Batch, Metrics]:
        acting = self._acting(policy)
        state, batch, metrics = rollout.unroll(self.vector_env, acting, agent, state, params, key, num_steps=self.num_steps)
        return state, batch._replace(carry=batch.carry.student), metrics

    def _acting(self, student: Policy) -> Policy:
        def init(num_rows: int) -> Onlooking:
            return Onlooking(student.init(num_rows), self.teacher.init(num_rows))

        def act(
            agent: Agent, carry: Onlooking, inputs: PolicyInput, key: jax.Array
        ) -> tuple[Onlooking, PyTree, dict[str, PyTree]]:
            student_key, teacher_key = jax.random.split(key)
            student_carry, _, extras = student.act(agent, carry.student, inputs, student_key)
            teacher_carry, action, _ = self.teacher.act(None, carry.teacher, inputs, teacher_key)
            return Onlooking(student_carry, teacher_carry), action, extras

        return Policy(init, act, privileged=self.teacher.privileged)
