"""What a benchmark counts and consumes. How fast anything is, is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny as tiny_config

from jaxagent import bench, config
from jaxagent.bench import suite
from jaxagent.bench.__main__ import main
from jaxagent.envs import registry
from jaxagent.envs.vector import VectorEnv
from jaxagent.train import Trainer
from jaxagent.types import Box, Discrete, MultiDiscrete

TINY = tiny_config.toml(num_updates=2)
KEYS = {"case", "num_envs", "num_steps", "obs", "compile_s", "seconds", "steps_per_s", "resets_per_step", "checksum", "machine"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def trainer(tiny: Path) -> Trainer:
    return config.build(config.read(tiny))[0]


def check_result(result: bench.Result, *, env_steps: int) -> None:
    """The contract of a result; `env_steps` is what one timed call does."""
    assert result.keys() >= KEYS
    assert all(seconds > 0 for seconds in (result["compile_s"], *result["seconds"]))
    assert result["steps_per_s"] == pytest.approx(env_steps / np.median(result["seconds"]))
    assert 0 < result["checksum"] < 2**32
    assert json.loads(json.dumps(result)) == result
    assert bench.summary(result).startswith(result["case"])


def test_env_steps() -> None:
    result = bench.bench_env("Collector-v0", num_envs=8, num_steps=50, repeats=2)
    check_result(result, env_steps=8 * 50)
    assert result["case"] == "env/Collector-v0" and result["obs"] == "packed" and len(result["seconds"]) == 2
    # an episode takes 7 to 20 steps, so 100 steps of a row end at least 5 and at most 14 episodes
    assert 5 / 100 <= result["resets_per_step"] <= 14 / 100
    again = bench.bench_env("Collector-v0", num_envs=8, num_steps=50, repeats=1)
    other = bench.bench_env("Collector-v0", num_envs=8, num_steps=50, repeats=1, seed=1)
    assert again["checksum"] == result["checksum"] != other["checksum"]


def test_the_checksum_is_that_of_plain_stepping() -> None:
    env, params = registry.make("Collector-v0")
    vector_env = VectorEnv(env, 3)
    start = vector_env.init(jax.random.key(1), params)
    key = jax.random.key(2)
    _, counts = jax.jit(lambda s: bench.act_randomly(vector_env, s, params, key, 30))(start)

    step = jax.jit(vector_env.step)
    state, checksum, resets = vector_env.refresh(start, params), 0, 0
    for step_key in jax.random.split(key, 30):
        state, out = step(state, bench.random_action(env.spec.action, step_key, 3), params)
        for leaf in (*jax.tree.leaves(vector_env.observe(state)), out.terminated, out.truncated):
            checksum += int(np.asarray(leaf, np.int64).sum())
        checksum += int(np.asarray(out.reward).view(np.uint32).astype(np.int64).sum())
        resets += int((out.terminated | out.truncated).sum())
    assert int(counts.checksum) == checksum % 2**32
    assert int(counts.resets) == resets > 0


@pytest.mark.fast
def test_wrong_requests() -> None:
    for arguments, message in (
        ({"name": "Colector-v0"}, "did you mean Collector-v0"),
        ({"name": "Collector-v0", "obs": "pakced"}, "obs: expected one of"),
        ({"name": "Collector-v0", "num_envs": 0}, "num_envs: expected at least 1, got 0"),
        ({"name": "Collector-v0", "pool_size": 0}, "pool_size: expected a positive integer, got 0"),
        ({"name": "Collector-v0", "repeats": -1}, "repeats: expected at least 1, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            bench.bench_env(**arguments)


@pytest.mark.fast
def test_bits_are_summed_exactly() -> None:
    # 1.0 is 0x3f800000 and -0.0 is 0x80000000: together 0xbf800000; 255 + 3 more; True is 1
    tree = {"f": jnp.array([1.0, -0.0]), "u": jnp.array([255, 3], jnp.uint8), "b": jnp.array(True)}
    assert int(bench.bits_sum(tree)) == 0xBF800000 + 258 + 1
    # bfloat16 1.0 is 0x3f80; -1 counts as 2^32 - 1
    assert int(bench.bits_sum([jnp.array(1.0, jnp.bfloat16), jnp.array(-1, jnp.int32)])) == 0x3F80 - 1
    assert int(bench.bits_sum(jax.random.key(7))) == 7


@pytest.mark.fast
def test_random_actions() -> None:
    key = jax.random.key(0)
    draws = np.asarray(bench.random_action(Discrete(7), key, 70_000))
    counts = np.bincount(draws, minlength=7)
    # binomial: mean 10000, standard deviation 93; five of them
    assert draws.dtype == np.int32 and len(counts) == 7 and np.abs(counts - 10_000).max() < 470
    many = np.asarray(bench.random_action(MultiDiscrete((2, 5)), key, 1000))
    assert many.shape == (1000, 2) and many.min() == 0 and many.max(0).tolist() == [1, 4]
    box = np.asarray(bench.random_action(Box((-1.0, 0.0), (1.0, 4.0), (2,)), key, 1000))
    assert box.shape == (1000, 2) and (box >= [-1, 0]).all() and (box <= [1, 4]).all() and box[:, 1].max() > 3.9
    assert np.isfinite(bench.random_action(Box(-np.inf, np.inf, ()), key, 10)).all()


def test_training(trainer: Trainer) -> None:
    result = bench.bench_train(trainer, num_updates=2, repeats=2)
    check_result(result, env_steps=4 * 8 * 2)
    lanes = bench.bench_train(trainer, num_updates=2, repeats=1, lanes=2)
    check_result(lanes, env_steps=2 * 4 * 8 * 2)
    assert lanes["lanes"] == 2


def test_acting(trainer: Trainer) -> None:
    check_result(bench.bench_policy(trainer, repeats=2), env_steps=4 * 8)


def test_lanes_over_devices(tiny: Path, trainer: Trainer, tmp_path: Path) -> None:
    """In a process of its own, because the number of devices is settled when JAX starts."""
    where = ["--devices", "2", "--num-updates", "2", "--repeats", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "jaxagent.bench", "sweep", str(tiny), "--lanes", "2", *where]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = json.loads((tmp_path / "sweep.json").read_text())
    (result,) = report["results"]
    check_result(result, env_steps=2 * 4 * 8 * 2)
    assert (result["lanes"], result["devices"], result["machine"]["devices"]["local"]) == (2, 2, 2)
    assert result["memory_bytes"]["temporary"] > 0
    assert report["planned"] == 1 and report["knees"] == {"2 devices": None}
    assert shown.splitlines() == suite.text(report).splitlines() and "lanes=2 on 2 devices" in shown
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    on_one = bench.bench_train(trainer, lanes=2, num_updates=2, repeats=1)
    assert on_one["resets_per_step"] == result["resets_per_step"] > 0  # the same runs


def test_scale(tiny: Path, tmp_path: Path) -> None:
    report = suite.scale(tiny, num_envs="4", num_updates=2, repeats=1, out=tmp_path)
    (result,) = report["results"]
    check_result(result, env_steps=4 * 8 * 2)
    assert (result["case"], result["num_envs"], result["lanes"], result["devices"]) == ("scale/tiny", 4, 1, 1)
    assert json.loads((tmp_path / "scale.json").read_text()) == report
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.fast
def test_wrong_curves(tiny: Path, trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="lanes: expected positive integers such as 1,2,4, got 1,x"):
        suite.sweep(tiny, lanes="1,x")
    with pytest.raises(ValueError, match="num_envs: expected positive integers such as 1,2,4, got 0"):
        suite.scale(tiny, num_envs="0")
    with pytest.raises(ValueError, match="devices: expected at most the 1 that are here, got 2"):
        bench.bench_train(trainer, lanes=2, devices=2)


@pytest.mark.fast
def test_the_knee() -> None:
    # 1 to 2: twice as fast; 2 to 8: 2.2 times, more than the square root of 4; 8 to 16: 1.1 times, less than that of 2
    curve = [(1, 100.0), (2, 200.0), (8, 440.0), (16, 484.0)]
    assert suite.knee(curve) == 8
    assert suite.knee(curve[:3]) is None and suite.knee(curve[:1]) is None
    results = [{"lanes": n, "devices": 1, "steps_per_s": rate} for n, rate in reversed(curve)]
    assert suite.curves([*results, {"lanes": 32, "devices": 1, "error": "out of memory"}], "lanes") == {"1 device": curve}
    assert suite.numbers("lanes", "8,1,2,2") == [1, 2, 8]
    assert list(suite.doublings(6)) == [1, 2, 4, 6] and list(suite.doublings(1)) == [1]


def test_quick(trainer: Trainer, tmp_path: Path) -> None:
    sizes = suite.SMOKE._replace(train_num_envs=(4,), lane_num_envs=4)
    report = suite.quick(trainer, "tiny", tmp_path / "new", sizes=sizes, repeats=1)
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == report
    found = [(r["case"], r["num_envs"], r.get("lanes")) for r in report["results"]]
    assert found == [("scale/tiny", 4, 1), ("sweep/tiny", 4, 2), ("env/Collector-v0", 16, None)]
    late = suite.quick(trainer, "tiny", tmp_path, sizes=sizes, budget_s=-1.0)
    assert late == {"planned": 3, "results": []} and suite.text(late) == "no time was left for 3 more cases"


def test_the_suite_as_one_command(tiny: Path, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "gpu.sh"
    if not script.exists():
        pytest.skip("benchmarks/ is not part of this distribution")
    environment = os.environ | {"PYTHON": sys.executable}
    command = [script, "--smoke", "--config", "tiny.toml", "--out", tmp_path / "new"]
    subprocess.run(command, env=environment, cwd=tiny.parent, check=True)
    results = json.loads((tmp_path / "new" / "bench.json").read_text())["results"]
    assert results[0]["case"] == "scale/tiny"  # the others, if the budget lasts
    check_result(results[0], env_steps=2 * 16 * 8)
    refused = subprocess.run([script, "--smok"], capture_output=True, text=True)
    assert refused.returncode == 2 and "benchmarks/gpu.sh [--out DIR]" in refused.stderr


@pytest.mark.fast
def test_a_case_that_does_not_fit_is_recorded() -> None:
    def too_large() -> bench.Result:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    about = {"case": "env/x", "num_envs": 2**20}
    report = suite.run_all([suite.Case(about, too_large)])
    assert report == {"planned": 1, "results": [{**about, "error": "out of memory"}]}
    assert suite.text(report) == "env/x  B=1048576  out of memory"

    def broken() -> bench.Result:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError):
        suite.run_all([suite.Case(about, broken)])


def test_command_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "Collector-v0", "--num-envs", "4", "--num-steps", "5", "--repeats", "1", "--linearity", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    check_result(result, env_steps=20)
    assert result["linearity"] > 0
    assert main(["policy", str(tiny), "--repeats", "1"]) == 0
    assert capsys.readouterr().out.startswith("policy/tiny  obs=packed  B=4  T=8")
    assert main(["env", "Colector-v0"]) == 2
    assert "did you mean Collector-v0" in capsys.readouterr().err
    assert main(["train", str(tiny.with_name("none.toml"))]) == 2
    assert "found nothing" in capsys.readouterr().err
