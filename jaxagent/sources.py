"""Where a learner's batches come from."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxagent import rollout
from jaxagent.envs.base import Situated
from jaxagent.envs.vector import VectorEnv
from jaxagent.ops.digest import digest
from jaxagent.rollout import RolloutState
from jaxagent.types import Agent, Batch, Carry, Metrics, Policy, PolicyInput, PyTree

Anchor = Literal["state", "observation"]


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


@dataclass(frozen=True)
class Groups:
    """Whole episodes, one a row, the rows of a group on one level; new levels for every batch.

    Rows are masked after their end. An episode longer than `num_steps` is cut there, and counted in `unfinished_rate`.

    Attributes:
      vector_env: all rows that are played, in mode `none`, with its `group_size`.
      num_steps: T.
      oversample: plays so many times the rows of a batch, and keeps the groups whose returns vary most.
      anchor: what is hashed into the extras as `situation` for every step: the environment's `state`, if it can say what of it
        matters (`Situated`), or the `observation`; nothing if None.
    """

    vector_env: VectorEnv
    num_steps: int
    oversample: int = 1
    anchor: Anchor | None = None

    def init(self, key: jax.Array, policy: Policy, params: PyTree) -> tuple[()]:
        """There is nothing to remember."""
        return ()

    def next(
        self, state: tuple[()], policy: Policy, agent: Agent, params: PyTree, key: jax.Array
    ) -> tuple[tuple[()], Batch, Metrics]:
        start_key, act_key = jax.random.split(key)
        acting = policy if self.anchor is None else self._anchored(policy)
        begun = rollout.init(self.vector_env, acting, start_key, params)
        end, batch, metrics = rollout.unroll(
            self.vector_env,
            acting,
            agent,
            begun,
            params,
            act_key,
            num_steps=self.num_steps,
            until_ended=acting.value is None,  # a critic would have to see what follows a time limit
        )
        metrics["unfinished_rate"] = jnp.mean(~end.vector.ended, dtype=jnp.float32)
        return state, self._most_varied(batch) if self.oversample > 1 else batch, metrics

    def _anchored(self, policy: Policy) -> Policy:
        """The policy, with the hash of what it stands before among its extras."""
        env = self.vector_env.env

        def act(agent: Agent, carry: Carry, inputs: PolicyInput, key: jax.Array) -> tuple[Carry, PyTree, dict[str, PyTree]]:
            if self.anchor == "state" and isinstance(env, Situated):
                situation = jax.vmap(env.situation)(inputs.env_state)
            else:
                situation = inputs.observation
            carry, action, extras = policy.act(agent, carry, inputs._replace(env_state=None), key)
            return carry, action, extras | {"situation": digest(situation)}

        return Policy(policy.init, act, policy.value, privileged=True)

    def _most_varied(self, batch: Batch) -> Batch:
        """The groups whose episodes differ most in what they earned."""
        size = self.vector_env.group_size
        earned = jnp.sum(batch.transition.reward, axis=0).reshape(-1, size)
        _, groups = jax.lax.top_k(earned.var(axis=1), earned.shape[0] // self.oversample)
        rows = (groups[:, None] * size + jnp.arange(size)).reshape(-1)
        transition = jax.tree.map(lambda x: x[:, rows], batch.transition)
        return Batch(transition, jax.tree.map(lambda x: x[rows], batch.carry))


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
