"""GRPO and its relatives: every loss against float64, what must change nothing, and that tool use is learnt."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent import rollout
from jaxagent.envs.vector import VectorEnv
from jaxagent.learners.bc import BC
from jaxagent.learners.grpo import GRPO, LOSSES
from jaxagent.loop import summarise
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.ops import groups, kl
from jaxagent.ops.digest import digest
from jaxagent.ops.distributions import Categorical
from jaxagent.planners.scripted import scripted
from jaxagent.types import Batch, Box, Discrete, EnvSpec, Transition

T, B, G, A = 5, 8, 4, 3
SPEC = EnvSpec("Test-v0", Box(-1.0, 1.0, (3,)), Discrete(A), T)
LENGTHS = np.array([1, 3, 5, 2, 4, 5, 5, 1])
RETURNS = np.array([1.0, 0.0, 0.5, 1.0, 0.0, 2.0, 0.0, 1.0])


def learner(**settings) -> GRPO:
    return GRPO(network=actor_critic(SPEC, hidden=(8,)), **{"group_size": G, "num_minibatches": 1, "num_epochs": 1, **settings})


def sharpened(params: Any) -> Any:
    """A policy that depends strongly on what it sees: a ratio that is not 1 shows."""
    head = params["params"]["actor_head"] | {"kernel": 300.0 * params["params"]["actor_head"]["kernel"]}
    return {"params": params["params"] | {"actor_head": head}}


def moved(params: Any, seed: int, size: float = 0.3) -> Any:
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        structure, [leaf + size * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    )


def batch_of(grpo: GRPO, params: Any, *, returns=RETURNS, lengths=LENGTHS, seed: int = 0) -> Batch:
    """Episodes [T, B] acted under `params`, which earn their return at the end."""
    observation_key, act_key = jax.random.split(jax.random.key(seed))
    observation = jax.random.normal(observation_key, (T, B, 3))
    first = jnp.arange(T)[:, None] == jnp.zeros((1, B), jnp.int32)
    logits = grpo.network.apply(params, grpo.network.initial_carry(B), observation, first, method="sequence")[1]
    distribution = Categorical(logits)
    action = distribution.sample(act_key)
    time = np.arange(T)[:, None]
    ends = jnp.asarray(time == lengths - 1)
    extras = {"log_prob": distribution.log_prob(action), "entropy": distribution.entropy(), "action_params": logits}
    extras["situation"] = digest(observation.reshape(T * B, 3)).reshape(T, B)
    reward = jnp.where(ends, jnp.asarray(returns, jnp.float32), 0.0)
    mask = jnp.asarray(time < lengths)
    return Batch(Transition(observation, action, reward, ends, jnp.zeros_like(ends), first, mask, extras), ())


def loss_and_gradient(grpo: GRPO, state, batch: Batch, params: Any, rows=slice(None)):
    """Of the loss at `params`, where `state` acted, on some of the episodes of the batch."""
    episodes, _ = grpo._episodes(state, batch.transition, num_steps=batch.transition.mask.shape[0])
    items = grpo._prepared(jax.tree.map(lambda x: x[rows], episodes))
    (loss, metrics), gradient = jax.value_and_grad(grpo._loss, has_aux=True)(params, items, state.kl_coef)
    return float(loss), gradient, metrics


def started(grpo: GRPO):
    """A state, parameters some steps away from it, and a batch."""
    initial = sharpened(grpo.network.initial_params(jax.random.key(0)))
    state = grpo.init(jax.random.key(0), SPEC, params=initial)
    return state, moved(initial, 1), batch_of(grpo, initial)


# an independent rewrite -------------------------------------------------------------------------------------------------------


def float64_loss(grpo: GRPO, logits, reference, batch: Batch) -> float:
    """The loss of the papers, episode by episode and step by step, in float64."""
    t = jax.tree.map(np.asarray, batch.transition)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_r = None if reference is None else reference - np.log(np.exp(reference).sum(-1, keepdims=True))
    high = grpo.clip_eps if grpo.clip_eps_high is None else grpo.clip_eps_high
    earned = np.array([t.reward[t.mask[:, i], i].sum() for i in range(B)], np.float64)
    advantage, kept = np.zeros(B), np.zeros(B, bool)
    for g in range(0, B, G):
        mine = earned[g : g + G]
        kept[g : g + G] = mine.max() - mine.min() > 1e-6
        for i in range(g, g + G):
            baseline = (mine.sum() - earned[i]) / (G - 1) if grpo.leave_one_out else mine.mean()
            advantage[i] = earned[i] - baseline
            if grpo.scale == "group":
                advantage[i] /= max(mine.std(), grpo.std_floor)
    if grpo.scale == "batch":
        centred = np.array([earned[i] - earned[i // G * G : i // G * G + G].mean() for i in range(B) if kept[i]])
        advantage /= max(np.sqrt((centred**2).mean()), grpo.std_floor)
    steps = sum(int(t.mask[:, i].sum()) for i in range(B) if kept[i])
    total = 0.0
    for i in np.flatnonzero(kept):
        length = int(t.mask[:, i].sum())
        ratios = np.exp([log_p[s, i, t.action[s, i]] - t.extras["log_prob"][s, i].astype(np.float64) for s in range(length)])
        if grpo.loss == "gspo":
            ratios = np.full(length, np.exp(np.log(ratios).mean()))
        for s in range(length):
            r, a = ratios[s], advantage[i]
            if grpo.loss == "cispo":
                value = -np.clip(r, 1 - grpo.clip_eps, 1 + high) * a * log_p[s, i, t.action[s, i]]
            else:
                objective = min(r * a, np.clip(r, 1 - grpo.clip_eps, 1 + high) * a)
                value = -(max(objective, grpo.dual_clip * a) if grpo.dual_clip and a < 0 else objective)
            p = np.exp(log_p[s, i])
            value -= grpo.entropy_coef * -(p * log_p[s, i]).sum()
            if log_r is not None:
                value += grpo.kl_coef * (p * (log_p[s, i] - log_r[s, i])).sum()
            divisor = {"dr_grpo": T * kept.sum(), "dapo": steps, "bnpo": steps, "cispo": steps}.get(
                grpo.loss, length * kept.sum()
            )
            total += value / divisor
    return total


def logits_of(grpo: GRPO, params: Any, batch: Batch) -> np.ndarray:
    t = batch.transition
    output = grpo.network.apply(params, grpo.network.initial_carry(B), t.observation, t.is_first, method="sequence")
    return np.asarray(output[1], np.float64)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale": "none", "clip_eps_high": None, "dual_clip": None, "leave_one_out": True},
        {"scale": "batch", "entropy_coef": 0.1, "kl_coef": 0.3, "dual_clip": 1.5},
    ],
    ids=["default", "plain", "all"],
)
def test_every_loss_in_float64(loss, settings):
    grpo = learner(loss=loss, **settings)
    state, params, batch = started(grpo)
    if grpo.kl_coef is not None:
        state = state._replace(reference=moved(state.params, 2))
    found, gradient, metrics = loss_and_gradient(grpo, state, batch, params)
    reference = None if grpo.kl_coef is None else logits_of(grpo, state.reference, batch)
    expected = float64_loss(grpo, logits_of(grpo, params, batch), reference, batch)
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-6)
    assert metrics["clip_fraction_high"] + metrics["clip_fraction_low"] > 0, "some ratios are beyond the bounds"
    # the gradient, along a direction
    if loss in ("gspo", "cispo"):
        return  # whose values are not what is differentiated
    direction = moved(jax.tree.map(jnp.zeros_like, params), 5, 1.0)
    shifted = [jax.tree.map(lambda p, d, s=s: p + s * d, params, direction) for s in (1e-3, -1e-3)]
    up, down = (float64_loss(grpo, logits_of(grpo, p, batch), reference, batch) for p in shifted)
    along = sum(float(jnp.vdot(g, d)) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    assert along == pytest.approx((up - down) / 2e-3, rel=0.1, abs=0.02)


# what must change nothing -----------------------------------------------------------------------------------------------------


def assert_equal_trees(found, expected, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), found, expected)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "bnpo"])
def test_minibatches_and_microbatches_share_one_denominator(loss):
    """The gradients of the parts of a batch, however it is cut, add up to that of the whole."""
    grpo = learner(loss=loss, kl_coef=0.1, entropy_coef=0.01)
    state, params, batch = started(grpo)
    _, whole, _ = loss_and_gradient(grpo, state, batch, params)
    for parts in (2, 4, 8):
        pieces = [loss_and_gradient(grpo, state, batch, params, rows=slice(i, None, parts))[1] for i in range(parts)]
        assert_equal_trees(jax.tree.map(lambda *g: sum(g), *pieces), whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["dapo", "gspo", "bnpo"])
def test_microbatches_learn_what_the_minibatch_does(loss):
    state, _, batch = started(learner(loss=loss, kl_coef=0.1))
    updated = [
        jax.jit(learner(loss=loss, kl_coef=0.1, num_microbatches=parts).update)(state, batch, jax.random.key(3))[0].params
        for parts in (1, 2, 4)
    ]
    assert_equal_trees(updated[1], updated[0], rtol=1e-4, atol=1e-6)
    assert_equal_trees(updated[2], updated[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{"loss": loss} for loss in LOSSES] + [{"scale": "batch", "lag": 1}])
def test_blocks_of_groups_learn_what_the_whole_batch_does(settings):
    """Spread over an axis, a group on each part: every denominator is that of the whole."""
    whole = learner(kl_coef=0.1, entropy_coef=0.01, **settings)
    state, _, batch = started(whole)
    t = batch.transition._replace(reward=batch.transition.reward.at[0, 5].set(3.0))  # the groups differ in spread
    expected, metrics = jax.jit(whole.update)(state, Batch(t, ()), jax.random.key(0))
    parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(T, 2, G, *x.shape[2:]), 1, 0), t)
    part = whole.replace(axes=("block",))
    in_blocks = jax.vmap(lambda p: part.update(state, Batch(p, ()), jax.random.key(0)), out_axes=None, axis_name="block")
    found, found_metrics = jax.jit(in_blocks)(parts)
    assert_equal_trees(found.params, expected.params, rtol=1e-3, atol=1e-5)
    assert_equal_trees(found_metrics, metrics, rtol=1e-3, atol=1e-5)


def test_without_a_critic_the_actor_is_the_same():
    """Parameters with a critic serve a network without one, which is the smaller by it."""
    with_one, without = (
        GRPO(network=actor_critic(SPEC, hidden=(8,), shared=False, critic=critic), group_size=G) for critic in (True, False)
    )
    params = sharpened(with_one.network.initial_params(jax.random.key(0)))
    states = [one.init(jax.random.key(0), SPEC, params=params) for one in (with_one, without)]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(state.params)) for state in states]
    assert sizes[0] - sizes[1] == 3 * 8 + 8 + 8 + 1
    batch = batch_of(with_one, params)
    losses = [
        loss_and_gradient(one, state, batch, moved_actor(state.params))[0]
        for one, state in zip((with_one, without), states, strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def moved_actor(params):
    head = jax.tree.map(lambda x: x + 0.1, params["params"]["actor_head"])
    return {"params": params["params"] | {"actor_head": head}}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_follows_the_end_does_not_count(loss):
    grpo = learner(loss=loss, kl_coef=0.1, entropy_coef=0.01, turn_weight=1.0)
    state, params, batch = started(grpo)
    t, beyond = batch.transition, ~batch.transition.mask
    noise = jax.random.normal(jax.random.key(9), (T, B))
    spoilt = t._replace(
        observation=jnp.where(beyond[..., None], 100.0 * noise[..., None], t.observation),
        action=jnp.where(beyond, 0, t.action),
        reward=jnp.where(beyond, noise, t.reward),
        extras=t.extras | {"log_prob": jnp.where(beyond, noise, t.extras["log_prob"])},
    )
    found = loss_and_gradient(grpo, state, Batch(spoilt, ()), params)
    expected = loss_and_gradient(grpo, state, batch, params)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert_equal_trees(found[1], expected[1], rtol=1e-4, atol=1e-7)


def test_rollouts_stop_where_all_episodes_have_ended():
    """In every lane: up to there they hold what they would hold without, and are counted alike."""
    env, params = ja.make("ToolSelect-v0")
    policy, vector_env = scripted(env, "sft"), VectorEnv(env, 4, "none", group_size=2)

    def played(key, until_ended):
        begun = rollout.init(vector_env, policy, key, params)
        found = rollout.unroll(vector_env, policy, None, begun, params, key, num_steps=24, until_ended=until_ended)
        return found[0].vector.ended, found[1].transition, found[2]

    keys = jax.random.split(jax.random.key(0), 3)
    stopped, whole = (jax.jit(jax.vmap(functools.partial(played, until_ended=u)))(keys) for u in (True, False))
    lengths = np.asarray(stopped[1].mask.sum(1))
    assert stopped[0].all() and lengths.max() < 24 and len(np.unique(lengths.max(1))) > 1
    np.testing.assert_array_equal(stopped[1].mask, whole[1].mask)
    jax.tree.map(np.testing.assert_array_equal, stopped[2], whole[2])
    for found, expected in zip(jax.tree.leaves(stopped[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_array_equal(found[stopped[1].mask], expected[stopped[1].mask])
        assert not found[:, lengths.max() :].any()


@pytest.mark.parametrize("loss", LOSSES)
def test_room_for_longer_episodes_changes_nothing(loss):
    """But for what dr_grpo divides by. Of 20 steps the first 8 are learnt from, unless another axis makes all sizes run."""
    grpo = learner(loss=loss, kl_coef=0.1, entropy_coef=0.01)
    state, _, batch = started(grpo)
    roomy = Batch(jax.tree.map(lambda x: jnp.pad(x, [(0, 15)] + [(0, 0)] * (x.ndim - 1)), batch.transition), ())
    key = jax.random.key(0)
    expected, metrics = jax.jit(grpo.update)(state, batch, key)
    found, found_metrics = jax.jit(grpo.update)(state, roomy, key)
    whole = jax.jit(jax.vmap(grpo._optimize, in_axes=(None, 0, None)))(
        state, jax.tree.map(lambda x: x[None], roomy.transition), key
    )
    assert_equal_trees(jax.tree.map(lambda x: x[0], whole[0]), found.params, rtol=1e-4, atol=1e-6)
    for name in ("approx_kl", "clip_fraction_low", "clip_fraction_high"):  # of which no loss has its own
        assert found_metrics[name] == pytest.approx(float(metrics[name]), abs=1e-6)
    if loss == "dr_grpo":
        assert found_metrics["grad_norm"] == pytest.approx(float(metrics["grad_norm"]) * T / (T + 15), rel=1e-4)
    else:
        assert_equal_trees(found.params, expected.params, rtol=1e-4, atol=1e-6)


def test_the_first_step_has_ratios_of_one():
    grpo = learner()
    state, _, batch = started(grpo)
    _, _, metrics = loss_and_gradient(grpo, state, batch, state.params)
    assert metrics["clip_fraction_low"] == metrics["clip_fraction_high"] == 0
    assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)


def test_groups_that_earn_the_same_say_nothing_at_all():
    """No gradient, not even that of the divergence, and no part in the denominator."""
    grpo = learner(kl_coef=1.0, entropy_coef=0.1)
    state, params, _ = started(grpo)
    # ten times 0.1 and five times 0.2 differ in float32 by what adding them up in another order may
    same = np.float32(0.1) * np.float32(3) + np.array([0, 0, 1e-8, 0, 0, 0, 0, 3e-8], np.float32)
    _, gradient, _ = loss_and_gradient(grpo, state, batch_of(grpo, state.params, returns=same), params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))
    returns = np.concatenate([same[:4], RETURNS[4:]])
    one_silent = batch_of(grpo, state.params, returns=returns)
    alone = jax.tree.map(lambda x: x[:, 4:], one_silent.transition)
    both, only = (loss_and_gradient(grpo, state, Batch(t, ()), params)[1] for t in (one_silent.transition, alone))
    assert_equal_trees(both, only, rtol=1e-4, atol=1e-7)


def test_one_ratio_an_episode_is_one_a_step_where_episodes_have_one():
    grpo, gspo = (learner(loss=loss) for loss in ("grpo", "gspo"))
    state, params, _ = started(grpo)
    batch = batch_of(grpo, state.params, lengths=np.ones(B, int))
    found, expected = (loss_and_gradient(one, state, batch, params) for one in (gspo, grpo))
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert_equal_trees(found[1], expected[1], rtol=1e-4, atol=1e-7)


def test_potentials_do_not_change_what_episodes_are_worth():
    """With gamma 1 shaping adds -Phi(start) to every episode of a group: advantages stay (Ng et al. 1999)."""
    grpo = learner()
    state, params, batch = started(grpo)
    t = batch.transition
    potential = jax.random.normal(jax.random.key(4), (T + 1, B))
    potential = potential.at[0].set(jnp.repeat(potential[0, ::G], G))  # of one start
    following = jnp.where(t.terminated, 0.0, potential[1:])
    shaped = t._replace(reward=t.reward + jnp.where(t.mask, following - potential[:-1], 0.0))
    found, expected = (loss_and_gradient(grpo, state, Batch(one, ()), params)[1] for one in (shaped, t))
    assert_equal_trees(found, expected, rtol=1e-3, atol=1e-5)


def test_groups_that_say_nothing_are_no_part_of_the_deviation_even_where_divergence_is_paid_for():
    """The second group earned the same for its task; what it pays for the divergence does not count."""
    grpo = learner(kl_coef=0.1, kl_in="reward", scale="batch", leave_one_out=False)
    t = started(grpo)[2].transition
    task = np.zeros((T, B))
    task[0] = [1.0, 0.0, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0]
    paid = task + np.where(np.arange(T)[:, None] == 0, np.arange(B) * 0.25, 0.0)
    found, kept, dropped = grpo._advantages(t._replace(reward=jnp.asarray(task, jnp.float32)), jnp.asarray(paid, jnp.float32))
    first = paid.sum(0)[:G] - paid.sum(0)[:G].mean()
    np.testing.assert_allclose(found[0], [*(first / first.std()), 0.0, 0.0, 0.0, 0.0], rtol=1e-5)
    assert kept.tolist() == [True] * G + [False] * G and float(dropped) == 0.5


# comparing steps --------------------------------------------------------------------------------------------------------------


def test_steps_are_compared_in_equal_situations_of_a_group():
    """Returns to go 4, 2 and 0 in situation 7: mean 2; the step that is alone, those of another group and padding have none."""
    to_go = jnp.array([[4.0, 2.0, 9.0, 9.0], [1.0, 0.0, 9.0, 1.0]])
    situation = jnp.array([[7, 7, 7, 8], [5, 7, 8, 9]], jnp.uint32)
    mask = jnp.array([[True, True, True, True], [True, True, True, False]])
    found = groups.compare_steps(to_go, situation, mask, 2, scale="none", floor=1e-3)
    np.testing.assert_allclose(found, [[2.0, 0.0, 0.0, 0.0], [0.0, -2.0, 0.0, 0.0]], atol=1e-6)
    scaled = groups.compare_steps(to_go, situation, mask, 2, scale="group", floor=1e-3)
    np.testing.assert_allclose(scaled[0, 0], 2.0 / np.sqrt(8 / 3), rtol=1e-5)


@pytest.mark.parametrize("size", [3, 16])
def test_equal_returns_in_one_situation_are_no_advantage(size):
    """Their mean differs from them by what float32 rounds."""
    to_go, ones = jnp.full((5, size), 0.7), jnp.ones((5, size))
    assert not groups.compare_steps(to_go, ones.astype(jnp.uint32), ones > 0, size, scale="group", floor=1e-3).any()


def test_other_groups_are_no_measure_of_noise():
    to_go, ones = jnp.array([[1e7, 0.0, 1.0, 0.0]]), jnp.ones((1, 4))
    found = groups.compare_steps(to_go, ones.astype(jnp.uint32), ones > 0, 2, scale="none", floor=1e-3)
    np.testing.assert_allclose(found, [[5e6, -5e6, 0.5, -0.5]])


def test_step_advantages_that_weigh_nothing_or_are_alone():
    plain, weightless, apart = learner(), learner(turn_weight=0.0), learner(turn_weight=1.0)
    state, params, batch = started(plain)  # whose observations are all different
    expected = loss_and_gradient(plain, state, batch, params)[1]
    for other in (weightless, apart):
        assert_equal_trees(loss_and_gradient(other, state, batch, params)[1], expected, rtol=1e-5, atol=1e-8)


def test_one_situation_at_the_start_compares_returns():
    """Step advantages of equal first steps are the normalised returns: the episodes' own advantages once more."""
    returns = jnp.asarray(RETURNS, jnp.float32)
    ones = jnp.ones((1, B))
    of_step = groups.compare_steps(returns[None], ones.astype(jnp.uint32), ones > 0, G, scale="group", floor=1e-3)
    of_episode = groups.compare(returns, G, scale="group", floor=1e-3).advantage
    np.testing.assert_allclose(of_step[0], of_episode, rtol=1e-5)


def test_rewards_to_go_by_hand():
    reward, mask = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[True], [True], [False]])
    np.testing.assert_allclose(groups.returns_to_go(reward, mask, gamma=0.5)[:, 0], [2.0, 2.0, 0.0])


def test_digests_tell_rows_apart():
    rows = {"a": jnp.arange(4096, dtype=jnp.int32) // 2, "b": jnp.tile(jnp.array([[False, True], [True, False]]), (2048, 1))}
    assert len(set(np.asarray(digest(rows)).tolist())) == 4096
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), rows)
    np.testing.assert_array_equal(digest(twice)[:4096], digest(twice)[4096:])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_digests_of_floats(dtype):
    zero, negative, small, large = jax.jit(digest)(jnp.array([[0.0], [-0.0], [0.2], [0.9]], dtype)).tolist()
    assert zero == negative and len({zero, small, large}) == 3


# the divergence ---------------------------------------------------------------------------------------------------------------


def test_gradients_of_the_estimators():
    """By summing over all actions: that of k2 is the exact one, that of k1 is zero, that of k3 is another."""
    logits, other = jnp.array([0.3, -1.0, 0.8]), jnp.array([-0.5, 0.2, 0.1])

    def expected(estimator):
        def loss(x):
            log_ratio = jax.nn.log_softmax(x) - jax.nn.log_softmax(other)
            return jnp.sum(jax.lax.stop_gradient(jax.nn.softmax(x)) * kl.estimate(estimator, log_ratio))

        return jax.grad(loss)(logits)

    exact = jax.grad(lambda x: Categorical(x).kl(Categorical(other)))(logits)
    np.testing.assert_allclose(expected("k1"), jnp.zeros(3), atol=1e-6)
    np.testing.assert_allclose(expected("k2"), exact, rtol=1e-5)
    assert np.abs(expected("k3") - exact).max() > 0.05


def test_the_coefficient_follows_the_divergence():
    """Twice the target: +0.5 x 0.2. A tenth beyond it: +0.5 x 0.1. Half of it: -0.5 x 0.2. Never beyond 10."""
    coef, seen = jnp.float32(0.1), []
    for found in (0.2, 0.11, 0.05):
        coef = kl.adapted(coef, jnp.float32(found), 0.1)
        seen.append(float(coef))
    assert seen == pytest.approx([0.11, 0.11 * 1.05, 0.11 * 1.05 * 0.9], rel=1e-5)
    assert float(kl.adapted(jnp.float32(10.0), jnp.float32(9.0), 0.1)) == 10.0


def test_the_reference_is_refreshed_when_it_is_due():
    grpo = learner(kl_coef=0.1, reference_every=2.0, lr=1e-2)
    state, _, batch = started(grpo)
    update = jax.jit(grpo.update)
    first, _ = update(state, batch, jax.random.key(0))
    second, _ = update(first, batch, jax.random.key(1))
    assert_equal_trees(first.reference, state.params)
    assert_equal_trees(second.reference, second.params)


def test_older_parameters_act_and_are_weighted():
    grpo = learner(lag=2, lr=1e-2, max_importance=1.5)
    state, _, batch = started(grpo)
    states = [state]
    for i in range(4):
        states.append(jax.jit(grpo.update)(states[-1], batch, jax.random.key(i))[0])
    for i in range(2, 5):
        assert_equal_trees(grpo.agent(states[i]), states[i - 2].params)
    episodes, metrics = grpo._episodes(states[4], batch.transition, num_steps=batch.transition.mask.shape[0])
    ratio = np.exp(np.asarray(episodes.log_prob - batch.transition.extras["log_prob"].T))
    np.testing.assert_allclose(episodes.importance, np.minimum(ratio, 1.5), rtol=1e-5)
    assert 0.5 < float(metrics["importance"]) < 1.5


# refusals ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size: expected at least 2 episodes to compare, got 1"),
        ({"loss": "ppo"}, "loss: expected one of grpo, dr_grpo, bnpo, dapo, gspo, cispo, got 'ppo'"),
        ({"kl_target": 0.1}, "kl_target: expected None without kl_coef"),
        ({"dual_clip": 0.5}, r"dual_clip: expected a number in \[1, inf\]"),
        ({"lag": -1}, "lag: expected a number of updates"),
        ({"oversample": 0}, "oversample: expected a positive integer"),
        ({"group_size": True}, "group_size: expected at least 2 episodes to compare, got True"),
        ({"lag": 1.0}, "lag: expected a number of updates, got 1.0"),
        ({"lr": "a"}, r"lr: expected a number in \[0, inf\], got 'a'"),
        ({"kl_coef": 0.1, "kl_target": 0.0}, r"kl_target: expected a number in \(0, inf\], got 0.0"),
        ({"max_importance": 0.0}, r"max_importance: expected a number in \(0, inf\], got 0.0"),
        ({"adam_b2": 1.0}, r"adam_b2: expected a number in \[0, 1\), got 1.0"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        learner(**settings).validate()


def test_counts_are_numpy_integers_too():
    env, params = ja.make("ToolSelect-v0")
    counts = {name: np.int64(n) for name, n in {"group_size": 2, "num_epochs": 1, "num_minibatches": 1, "lag": 1}.items()}
    grpo = GRPO(network=actor_critic(env.spec, torso="bag", hidden=(8,)), **counts)
    trainer = ja.Trainer(env, params, grpo, num_envs=np.int64(4), num_steps=np.int32(24))
    trainer.validate()
    state, _ = jax.jit(lambda key: trainer.step(trainer.init(key)))(jax.random.key(0))
    assert state.update == 1


@pytest.mark.parametrize(
    ("settings", "params", "message"),
    [
        (
            {"levels": "fixed"},
            {},
            "levels: expected pool, since GRPO plays whole episodes, each group on a new level",
        ),
        ({"pool_size": 4}, {}, "pool_size: expected None, since GRPO plays whole episodes"),
        ({"reset_mode": "next_step"}, {}, "reset_mode: expected same_step, since GRPO plays whole episodes"),
        ({}, {"step_weight": float("inf")}, "params.step_weight: expected a finite number, got inf"),
        ({}, {"max_steps": 99}, "params.max_steps: expected 1 to 24, got 99"),
    ],
)
def test_trainers_that_are_refused(settings, params, message):
    env, defaults = ja.make("ToolSelect-v0")
    grpo = GRPO(network=actor_critic(env.spec, torso="bag", hidden=(8,)), group_size=2)
    trainer = ja.Trainer(env, defaults.replace(**params), grpo, num_envs=8, num_steps=4, **settings)
    with pytest.raises(ValueError, match=message):
        trainer.validate()


def test_a_wrong_trainer_is_not_begun():
    """What is known when it is traced: a learner's settings in a closure, and of an argument what is static."""
    env, params = ja.make("ToolSelect-v0")
    grpo = GRPO(network=actor_critic(env.spec, torso="bag", hidden=(8,)), group_size=2)
    trainer = ja.Trainer(env, params, grpo, num_envs=8, num_steps=24)
    for wrong, message in (
        (trainer.replace(learner=grpo.replace(group_size=1)), "group_size: expected at least 2"),
        (trainer.replace(learner=grpo.replace(loss="foo")), "loss: expected one of"),
        (trainer.replace(params=params.replace(step_weight=float("nan"))), "params.step_weight: expected a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            jax.jit(wrong.init)(jax.random.key(0))
    with pytest.raises(ValueError, match="loss: expected one of"):
        jax.jit(lambda trainer, key: trainer.init(key))(trainer.replace(learner=grpo.replace(loss="foo")), jax.random.key(0))


def test_references_and_batches_that_are_refused():
    grpo = learner(kl_coef=0.1)
    other = actor_critic(SPEC, hidden=(9,)).initial_params(jax.random.key(0))
    with pytest.raises(ValueError, match="reference: expected those of this network; of params/"):
        grpo.init(jax.random.key(0), SPEC, reference=other)
    with pytest.raises(ValueError, match="reference: expected None without kl_coef"):
        learner().init(jax.random.key(0), SPEC, reference=other)
    with pytest.raises(ValueError, match="num_envs: expected a multiple of the 4 episodes of a group, got 6"):
        grpo.validate_batch(num_steps=3, num_envs=6)


# learning ---------------------------------------------------------------------------------------------------------------------


def test_grids_are_learnt_too():
    """Collector from nothing: both resources, then a goal, pay 5.74."""
    env, params = ja.make("Collector-v0")
    grpo = GRPO(network=ja.actor_critic(env.spec, torso="mlp", critic=False), lr=3e-3, entropy_coef=0.02)
    trainer = ja.Trainer(env, params, grpo, num_envs=512, num_steps=20)
    trainer.validate()
    _, metrics = jax.jit(lambda key: trainer.run(trainer.init(key), 80))(jax.random.key(0))
    earned = metrics["return_sum"] / metrics["episodes"]
    assert earned[-5:].mean() > 4.5 > 0.0 > earned[:3].mean()


def test_wordy_demonstrations_are_cloned_and_then_shortened():
    """Cloned, ten turns; after comparing episodes for a while, about the six that are needed."""
    env, params = ja.make("ToolSelect-v0", window=32)
    network = ja.actor_critic(env.spec, hidden=(64,))

    def trained(learner, num_updates, num_steps, warm_start=None):
        trainer = ja.Trainer(env, params, learner, num_envs=256, num_steps=num_steps)
        trainer.validate()
        state, metrics = jax.jit(lambda key: trainer.run(trainer.init(key, warm_start=warm_start), num_updates))(
            jax.random.key(0)
        )
        last = {name: values[-20:] for name, values in jax.device_get(metrics).items()}
        return state.learner.params, summarise(last, 20)

    cloned, before = trained(BC(network=network, lr=3e-3, demonstrator="sft"), 160, 16)
    assert before["accuracy"] > 0.75
    _, after = trained(GRPO(network=network, lr=1e-3, entropy_coef=0.01, kl_coef=0.01), 60, 24, cloned)
    assert after["success_rate"] > 0.97 and after["turns_mean"] < 7 < before["turns_mean"] - 2
    assert after["unfinished_rate"] == 0 and after["kl"] > 0 and 0 < after["zero_variance_rate"] < 1
