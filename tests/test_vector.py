"""Vector stepping against a plain loop over single environments."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import rollout
from jaxagent.envs.base import redraw
from jaxagent.envs.vector import VectorEnv
from jaxagent.ops.compact import over_rows, put_rows, take_rows
from jaxagent.types import Box, Discrete, EnvSpec, Policy, PolicyInput

NUM_ENVS = 33  # no multiple of the chunk size
LIMIT = 5


class Level(NamedTuple):
    level: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class Clock:
    """A level is a number; it terminates after `level % 7 + 1` steps. Params are the time limit."""

    spec = EnvSpec("Clock", Box(0, 1e6, (2,)), Discrete(2), 10)

    def reset(self, key, params):
        state = Level(jax.random.randint(key, (), 0, 1000), jnp.int32(0))
        return self._observe(state), state

    def step(self, key, state, action, params):
        state = Level(state.level, state.time + 1)
        terminated = state.level % 7 + 1 == state.time
        return self._observe(state), state, jnp.float32(1.0), terminated, state.time >= params, {"success": terminated}

    def _observe(self, state):
        return jnp.stack([state.level, state.time]).astype(jnp.float32)


def _act(agent, carry, inputs: PolicyInput, key):
    return carry, jnp.zeros(inputs.is_first.shape, jnp.int32), {"value": inputs.observation.sum(-1)}


POLICY = Policy(init=lambda rows: (), act=_act, value=lambda agent, carry, inputs: inputs.observation.sum(-1))


def _unroll(vector_env, key, num_steps=12):
    start_key, act_key = jax.random.split(key)
    state = rollout.init(vector_env, POLICY, start_key, LIMIT)
    return rollout.unroll(vector_env, POLICY, (), state, LIMIT, act_key, num_steps=num_steps)


@pytest.mark.parametrize("levels", ["pool", "fresh", "fixed"])
@pytest.mark.parametrize("reset_mode", ["same_step", "next_step", "none"])
def test_every_row_plays_by_the_rules(reset_mode, levels):
    _, batch, metrics = jax.jit(partial(_unroll, VectorEnv(Clock(), NUM_ENVS, reset_mode, levels)))(jax.random.key(0))
    t = jax.tree.map(np.asarray, batch.transition)
    lengths, returns = [], []
    for row in range(NUM_ENVS):
        over, begun, level, time, total = False, False, None, 0, 0.0
        for i in range(t.reward.shape[0]):
            seen_level, seen_time = t.observation[i, row]
            if reset_mode == "none" and over:
                assert not t.mask[i, row] and t.reward[i, row] == 0
                continue
            if over and reset_mode == "next_step":  # the step spent on the reset: nothing happens in it
                assert not t.mask[i, row] and t.reward[i, row] == 0 and seen_time == time
                over, level = False, None
                continue
            assert t.mask[i, row]
            assert t.is_first[i, row] == (level is None)
            if level is None:
                assert seen_time == 0
                if levels == "fixed" and begun:
                    assert seen_level == t.observation[0, row, 0]
                level, time, total, begun = seen_level, 0, 0.0, True
            assert (seen_level, seen_time) == (level, time)
            time, total = time + 1, total + 1
            assert t.terminated[i, row] == (level % 7 + 1 == time)
            assert t.truncated[i, row] == (time == LIMIT)
            over = bool(t.terminated[i, row] | t.truncated[i, row])
            if not t.terminated[i, row]:  # the bootstrap sees the level that was played, not the next one
                assert t.extras["next_value"][i, row] == level + time
            if over:
                lengths.append(time)
                returns.append(total)
                level = None if reset_mode == "same_step" else level
                over = reset_mode != "same_step"
    assert (metrics["episodes"], metrics["length_sum"]) == (len(lengths), sum(lengths))
    assert metrics["return_sum"] == pytest.approx(sum(returns))
    assert metrics["env_steps"] == t.mask.sum()
    assert metrics["success_sum"] == t.terminated.sum()


@pytest.mark.parametrize("num_done", [0, 1, 2, 3, NUM_ENVS - 1, NUM_ENVS])
def test_over_rows_visits_each_masked_row_once(num_done):
    mask = jnp.zeros(NUM_ENVS, bool).at[np.random.default_rng(num_done).permutation(NUM_ENVS)[:num_done]].set(True)

    def body(rows, carry):
        visits, rounds = carry
        return put_rows(visits, rows, take_rows(visits, rows) + rows), rounds + 1

    visits, rounds = jax.jit(lambda m: over_rows(m, body, (jnp.zeros(NUM_ENVS, jnp.int32), 0), size=2))(mask)
    np.testing.assert_array_equal(visits, np.where(mask, np.arange(NUM_ENVS), 0))
    assert rounds == -(-num_done // 2)  # nothing runs without a masked row


def test_rows_do_not_depend_on_each_other():
    run = jax.jit(lambda n: _unroll(VectorEnv(Clock(), n, levels="fresh"), jax.random.key(3))[1].transition, static_argnums=0)
    few, many = run(8), run(NUM_ENVS)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:, :8]), few, many)


def test_exact_under_an_outer_vmap():
    run, keys = partial(_unroll, VectorEnv(Clock(), NUM_ENVS)), jax.random.split(jax.random.key(1), 3)
    together = jax.jit(jax.vmap(run))(keys)
    for lane, key in enumerate(keys):
        jax.tree.map(lambda a, b, i=lane: np.testing.assert_array_equal(a[i], b), together[1:], jax.jit(run)(key)[1:])


def test_a_step_with_a_pool_generates_no_level():
    calls = []

    @dataclass(frozen=True)
    class Counted(Clock):
        def reset(self, key, params):
            calls.append(1)
            return super().reset(key, params)

    vector_env = VectorEnv(Counted(), 4)
    state = vector_env.init(jax.random.key(0), LIMIT)
    calls.clear()
    jax.make_jaxpr(vector_env.step)(state, jnp.zeros(4, jnp.int32), LIMIT)
    assert not calls


def test_the_pool_is_renewed_by_each_rollout():
    vector_env = VectorEnv(Clock(), NUM_ENVS)
    state = rollout.init(vector_env, POLICY, jax.random.key(0), LIMIT)
    pools = []
    for i in range(2):
        state, _, metrics = rollout.unroll(vector_env, POLICY, (), state, LIMIT, jax.random.key(i), num_steps=3)
        pools.append(np.asarray(state.vector.levels.env_state.level))
        assert metrics["resets_per_level"] == metrics["episodes"] / NUM_ENVS
    assert (pools[0] != pools[1]).mean() > 0.9
    drawn = set(np.asarray(state.vector.env_state.level).tolist())
    assert len(drawn) > NUM_ENVS // 3


@dataclass(frozen=True)
class Picky(Clock):
    """A clock whose level must be a multiple of `rejects`. A state counts its draws by `time`."""

    rejects: int = 5

    def propose(self, key, attempt, params):
        level = jax.random.randint(jax.random.fold_in(key, attempt), (), 0, 1000)
        return Level(level, attempt.astype(jnp.int32)), level % self.rejects == 0

    def observe(self, state):
        return self._observe(state)


@pytest.mark.parametrize("num_rows", [1, NUM_ENVS, 200])
def test_only_rejected_levels_are_drawn_anew(num_rows):
    env, keys = Picky(), jax.random.split(jax.random.key(0), num_rows)
    rows = jax.jit(lambda keys: VectorEnv(env, num_rows)._generate(keys, LIMIT))(keys)
    assert rows.observation is None
    alone = jax.jit(jax.vmap(lambda key: redraw(env, key, LIMIT)))(keys)
    jax.tree.map(np.testing.assert_array_equal, rows.env_state, alone)
    level, attempt = rows.env_state
    assert np.all(level % env.rejects == 0)
    attempts = jnp.arange(int(attempt.max()) + 1, dtype=jnp.uint32)
    accepted = jax.vmap(lambda key: jax.vmap(lambda attempt: env.propose(key, attempt, LIMIT)[1])(attempts))(keys)
    np.testing.assert_array_equal(jnp.argmax(accepted, axis=1), attempt)  # the first that is accepted


@pytest.mark.parametrize(
    ("options", "field"), [({"reset_mode": "later"}, "reset_mode"), ({"levels": "x"}, "levels"), ({"num_envs": 0}, "num_envs")]
)
def test_validation_names_the_field(options, field):
    with pytest.raises(ValueError, match=field):
        VectorEnv(**{"env": Clock(), "num_envs": 4, **options}).validate()


@pytest.mark.parametrize("action", [jnp.zeros(5, jnp.int32), jnp.zeros((4, 1), jnp.int32), jnp.zeros(4)])
def test_actions_of_another_shape_or_type_are_refused_when_tracing(action):
    vector_env = VectorEnv(Clock(), 4)
    state = vector_env.init(jax.random.key(0), LIMIT)
    with pytest.raises(ValueError, match=r"action: expected int32 of shape \(4,\)"):
        jax.eval_shape(vector_env.step, state, action, LIMIT)
