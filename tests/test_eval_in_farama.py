"""Trained agents in Farama's own environments: what they see there, what they are told, and what the command says."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

from jaxagent import cli, evaluation  # noqa: E402
from jaxagent.envs import babyai, registry  # noqa: E402
from jaxagent.envs.grid import GridEnv, GridParams  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402
from jaxagent.interop.farama.episodes import Episodes  # noqa: E402
from jaxagent.types import Policy, PolicyInput  # noqa: E402

TINY = """
[env]
name = "MiniGrid-GoToObject-6x6-N2-v0"
max_steps = 20
[learner]
name = "ppo"
num_epochs = 1
num_minibatches = 1
[network]
torso = "mlp"
hidden = [8]
memory = 4
[train]
num_envs = 4
num_steps = 8
num_updates = 1
eval_episodes = 3
"""


def made(name: str, **options: Any) -> tuple[GridEnv, GridParams]:
    env, params = registry.make(name, **options)
    assert isinstance(env, GridEnv)
    return env, params


# what is seen -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "obs", "mission"),
    [
        ("BabyAI-MiniBossLevel-v0", "packed", "tokens"),
        ("BabyAI-PutNextS5N2Carrying-v0", "symbolic", "leaves"),
        ("BabyAI-Unlock-v0", "rgb", "leaves"),
        ("MiniGrid-LockedRoom-v0", "full", "tokens"),
        ("MiniGrid-GoToDoor-5x5-v0", "onehot", "leaves"),
        ("MiniGrid-Playground-v0", "packed", "leaves"),
    ],
)
def test_observations_are_ours(name: str, obs: str, mission: str) -> None:
    env, params = made(name, obs=obs, mission=mission)
    episodes = Episodes(env, params, num_episodes=3, seed=7)
    rng = np.random.default_rng(0)
    for _ in range(12):
        shown = episodes.observation()
        for i in np.flatnonzero(~episodes.ended):
            ours, _, state = from_farama(episodes._sources[i], obs, mission)
            expected = ours.observe(state)
            assert shown.keys() == expected.keys()
            for key, value in expected.items():
                np.testing.assert_array_equal(shown[key][i], value, f"{name} {key}")
                assert shown[key].dtype == value.dtype
        episodes.step(rng.integers(env.spec.action.n, size=3))


MIXED = ["BabyAI-GoToObjS4-v0", "BabyAI-GoToRedBallNoDists-v0", "BabyAI-MiniBossLevel-v0"]  # 4 x 4, 8 x 8 and 9 x 9 cells


@pytest.mark.parametrize("obs", ["full", "packed"])
def test_observations_are_those_of_the_mixture(obs: str) -> None:
    """A smaller world lies in the upper left corner; the rest is wall, in ours and here."""
    mixture, params = made("BabyAI-Mix", levels=MIXED, obs=obs, mission="tokens")
    only = babyai.only(mixture, params, MIXED[1])
    np.testing.assert_array_equal(only.weights, [0, 1, 0])
    ours, _ = jax.jit(mixture.reset)(jax.random.key(0), only)
    episodes = Episodes(mixture, params, num_episodes=2, seed=1, level=MIXED[1])
    shown = episodes.observation()
    assert {name: (leaf.shape[1:], leaf.dtype) for name, leaf in shown.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in ours.items()
    }
    assert {source.max_steps for source in episodes._sources} == {64}  # 8 x 8 cells, one place to go to
    for i, source in enumerate(episodes._sources):
        alone, _, state = from_farama(source, obs, "tokens")
        expected = alone.observe(state)
        np.testing.assert_array_equal(shown["mission"][i], expected["mission"])
        size = expected["image"].shape
        np.testing.assert_array_equal(shown["image"][i][: size[0], : size[1]], expected["image"])
    if obs == "full":
        assert size == (8, 8, 3) and ours["image"].shape == (9, 9, 3)
        for image in (ours["image"], *shown["image"]):
            assert (np.asarray(image[8:]) == [2, 5, 0]).all() and (np.asarray(image[:, 8:]) == [2, 5, 0]).all()


@pytest.mark.parametrize(
    ("name", "level", "message"),
    [
        (
            "BabyAI-Mix",
            None,
            f"level: expected one of those that BabyAI-Mix mixes ({', '.join(MIXED)}), got none",
        ),
        ("BabyAI-Mix", "BabyAI-GoToObjS5-v0", "got 'BabyAI-GoToObjS5-v0'; nearest: BabyAI-GoToObjS4-v0"),
        ("BabyAI-GoToObjS4-v0", "BabyAI-GoTo-v0", "expected none, because BabyAI-GoToObjS4-v0 is no mixture"),
    ],
)
def test_other_levels_are_refused(name: str, level: str | None, message: str) -> None:
    env, params = made(name, **({"levels": MIXED} if name == "BabyAI-Mix" else {}))
    with pytest.raises(ValueError) as caught:
        Episodes(env, params, num_episodes=1, seed=0, level=level)
    assert message in str(caught.value)


def test_levels_of_a_mixture_are_as_they_are_alone() -> None:
    options: dict[str, Any] = {"fixed": True, "done_action": True, "max_steps": 30, "obs": "rgb", "mission": "tokens"}
    mixture, _ = made("BabyAI-Mix", levels=["BabyAI-Unlock-v0", "BabyAI-SynthS5R2-v0"], **options)
    assert babyai.member(mixture, "BabyAI-SynthS5R2-v0") == made("BabyAI-SynthS5R2-v0", **options)[0]
    alone, params = made("BabyAI-Unlock-v0")
    assert babyai.member(alone, None) == babyai.member(alone, "BabyAI-Unlock-v0") == alone
    assert babyai.only(alone, params, None) == params


@pytest.mark.parametrize(
    ("name", "options", "params", "limit"),
    [
        # four rooms of 5 x 5 cells; one to eight of them to go to
        ("BabyAI-MiniBossLevel-v0", {}, {}, {100, 200, 300, 400, 500}),
        ("BabyAI-MiniBossLevel-v0", {}, {"max_steps": 150}, {100, 150}),
        ("BabyAI-MiniBossLevel-v0", {"max_steps": 450}, {}, {450}),
        ("BabyAI-UnlockPickup-v0", {"fixed": True}, {}, {288}),
        ("MiniGrid-Unlock-v0", {}, {}, {288}),
        ("MiniGrid-Unlock-v0", {"max_steps": 9}, {}, {9}),
    ],
)
def test_episodes_are_as_long_as_ours(name: str, options: dict[str, Any], params: dict[str, Any], limit: set[int]) -> None:
    env, values = made(name, params=params, **options)
    episodes = Episodes(env, values, num_episodes=24, seed=0)
    assert {source.max_steps for source in episodes._sources} == limit


# how it is acted --------------------------------------------------------------------------------------------------------------


def forgetful(observation: Any) -> jax.Array:
    """Some number for each observation."""
    parts = [leaf.reshape(len(leaf), -1).astype(jnp.int32) for leaf in jax.tree.leaves(observation)]
    flat = jnp.concatenate(parts, axis=1)
    return (flat * (1 + jnp.arange(flat.shape[1]) % 13)).sum(axis=1)


def act(agent: Any, carry: jax.Array, inputs: PolicyInput, key: jax.Array) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """Depends on all that it is given."""
    memory = jnp.where(inputs.is_first, agent, 5 * carry)
    carry = (memory + forgetful(inputs.observation) + 3 * inputs.last_action + (1000 * inputs.last_reward).astype(int)) % 1009
    return carry, carry % 7, {}


POLICY = Policy(init=lambda rows: jnp.zeros(rows, jnp.int32), act=act)


def test_episodes_go_as_in_ours() -> None:
    num = 4
    env, params = made("BabyAI-GoToLocal-v0", max_steps=30)
    results = evaluation.evaluate_in_farama(env, params, POLICY, jnp.int32(11), num_episodes=num, seed=3)
    sources = Episodes(env, params, num_episodes=num, seed=3)._sources
    assert len({source.mission for source in sources}) > 1
    states = [from_farama(source, env.obs)[2] for source in sources]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    seen, carry = jax.vmap(env.observe)(state), POLICY.init(num)
    action, reward = jnp.zeros(num, jnp.int32), jnp.zeros(num)
    total, length, ended = np.zeros(num), np.zeros(num, int), np.zeros(num, bool)
    for t in range(30):
        carry, action, _ = act(jnp.int32(11), carry, PolicyInput(seen, action, reward, jnp.full(num, t == 0)), None)
        seen, state, reward, terminated, truncated, _ = step(jax.random.key(0), state, action, params)
        total, length = total + np.where(ended, 0, reward), length + ~ended
        ended |= np.asarray(terminated | truncated)
    np.testing.assert_allclose(results.total_reward, total, atol=1e-6)
    np.testing.assert_array_equal(results.length, length)
    np.testing.assert_array_equal(results.success, total > 0)


def test_the_seed_decides_everything() -> None:
    env, params = made("MiniGrid-Dynamic-Obstacles-5x5-v0", max_steps=10)
    assert env.spec.action.n == 3

    def play(seed: int) -> evaluation.EpisodeResults:
        turns = Policy(POLICY.init, lambda *given: (given[1], act(*given)[1] % 3, {}))
        return evaluation.evaluate_in_farama(env, params, turns, jnp.int32(0), num_episodes=6, seed=seed)

    jax.tree.map(np.testing.assert_array_equal, play(0), play(0))
    assert (play(0).length != play(1).length).any()
    assert play(0).total_reward.min() == -1


def test_success_is_not_defined_where_there_is_nothing_to_do() -> None:
    env, params = made("MiniGrid-Playground-v0", max_steps=2)
    assert evaluation.evaluate_in_farama(env, params, POLICY, jnp.int32(0), num_episodes=2, seed=0).success is None


# the command ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("farama")
    (path / "tiny.toml").write_text(TINY)
    assert cli.main(["train", str(path / "tiny.toml"), "--out", str(path / "run")]) == 0
    return path / "run"


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert cli.main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_in_farama(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = evaluated(capsys, str(run), "--episodes", "3")
    theirs = evaluated(capsys, str(run), "--episodes", "3", "--in", "farama")
    assert theirs.pop("in") == "farama" and theirs.keys() == ours.keys()
    assert theirs["episodes"] == 3 and 0 <= theirs["success_rate"] <= 1 and 1 <= theirs["length_mean"] <= 20
    assert cli.main(["eval", str(run), "--episodes", "3", "--in", "farama"]) == 0
    assert "in             farama" in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(run), "--in", "feramo"]) == 2
    assert "'jaxagent', 'farama'" in capsys.readouterr().err.replace("\n", " ")
    monkeypatch.setitem(sys.modules, "minigrid", None)
    assert cli.main(["eval", str(run), "--in", "farama"]) == 2
    assert capsys.readouterr().err == "error: --in farama: minigrid is not installed: pip install jaxagent[farama]\n"


@pytest.fixture(scope="module")
def mixture_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    mixture = f'"BabyAI-Mix"\nlevels = {json.dumps(MIXED[:2])}\nobs = "full"'
    (path / "tiny.toml").write_text(TINY.replace('"MiniGrid-GoToObject-6x6-N2-v0"', mixture))
    assert cli.main(["train", str(path / "tiny.toml"), "--out", str(path / "run")]) == 0
    return path / "run"


def test_eval_of_a_mixture(mixture_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(mixture_run), "--episodes", "3", "--level", MIXED[0])
    ours, theirs = evaluated(capsys, *arguments), evaluated(capsys, *arguments, "--in", "farama")
    assert ours["level"] == theirs["level"] == MIXED[0] and theirs.pop("in") == "farama" and theirs.keys() == ours.keys()
    assert 1 <= theirs["length_mean"] <= 20


def test_eval_of_a_mixture_needs_a_level_of_it(mixture_run: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (
            (mixture_run, "--in", "farama"),
            f"--level: expected one of those that BabyAI-Mix mixes ({', '.join(MIXED[:2])}), got none",
        ),
        ((mixture_run, "--level", "BabyAI-GoToObjS5-v0"), "got 'BabyAI-GoToObjS5-v0'; nearest: BabyAI-GoToObjS4-v0"),
        ((mixture_run, "--in", "farama", "--level", "nothing"), "--level: expected one of those that BabyAI-Mix mixes"),
        ((run, "--level", MIXED[0]), "--level: expected none, because MiniGrid-GoToObject-6x6-N2-v0 is no mixture"),
    ):
        assert cli.main(["eval", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
