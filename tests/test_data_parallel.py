"""One run on several devices and in several processes: the same as on one, and what happens when one is lost.

Several devices of one machine are forced CPU devices, which JAX makes at its start only: hence the child processes. Floats are
compared up to the order in which they are added, which depends on the number of devices.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxagent as ja
from jaxagent import checkpoint, cli, config, distributed, loop, metrics
from jaxagent.commands import runs
from jaxagent.errors import ConfigError, UsageError
from jaxagent.ops.masked import mean_weights, standardize
from jaxagent.rundir import RunDir
from jaxagent.sources import OnPolicy
from jaxagent.train import BLOCKS

MANUAL = (Path(__file__).parent.parent / "docs" / "data_parallel.md").read_text()
SECONDS = 250  # that a child may take; it takes ten once all is compiled
CONFIG = """
env.name = "CartPole-v1"
learner = { name = "ppo", num_epochs = 1, num_minibatches = 2, normalize_observation = true }
network.hidden = [8]
train = { num_envs = 16, num_steps = 8, segment = 10, num_updates = 200, checkpoint_every = 20, eval_episodes = 4 }
"""


def _mesh(num_devices: int = 1) -> Mesh:
    return Mesh(np.array(jax.devices()[:num_devices]), ("data",))


def _trainer(mesh: Mesh | None, memory: int = 0) -> ja.Trainer:
    """Everything that has a denominator is on: masked steps, advantages, running statistics, the stop at a divergence."""
    env, params = ja.make("CartPole-v1")
    ppo = ja.PPO(
        network=ja.actor_critic(env.spec, hidden=(8,), memory=memory),
        lr=3e-3,
        num_epochs=2,
        num_minibatches=2,
        target_kl=2e-5,
        normalize_advantage="minibatch" if memory else "batch",
        normalize_observation=True,
        normalize_reward=True,
        sequence_length=8 if memory else None,
    )
    return ja.Trainer(env, params, ppo, num_envs=16, num_steps=32, reset_mode="next_step", mesh=mesh)


def _leaves(tree) -> list[np.ndarray]:
    data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return [np.asarray(data(leaf)) for leaf in jax.tree.leaves(tree)]


def _assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) > 20
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# in one process ---------------------------------------------------------------------------------------------------------------


def test_an_update_of_eight_blocks_is_that_of_the_whole_batch():
    trainer = _trainer(None)
    ppo = trainer.learner.replace(num_minibatches=1)
    source = OnPolicy(trainer._vector_env, trainer.num_steps)

    @jax.jit
    def play(key):
        state = trainer.init(key)
        return state, source.next(state.source, ppo.policy(), ppo.agent(state.learner), trainer.params, key)[1]

    state, batch = play(jax.random.key(0))
    mask = batch.transition.mask.at[8:, :5].set(False)  # some blocks count for less than others
    batch = batch._replace(transition=batch.transition._replace(mask=mask))

    def cut(axis: int):
        return lambda x: jnp.moveaxis(x.reshape(*x.shape[:axis], BLOCKS, -1, *x.shape[axis + 1 :]), axis, 0)

    blocks = batch._replace(transition=jax.tree.map(cut(1), batch.transition), carry=jax.tree.map(cut(0), batch.carry))
    for how in ("minibatch", "batch"):
        learner = ppo.replace(normalize_advantage=how)
        whole = jax.jit(learner.update)(state.learner, batch, jax.random.key(2))
        one_of_eight = learner.replace(axes=("block",))
        in_blocks = jax.vmap(one_of_eight.update, (None, 0, None), None, axis_name="block")
        _assert_close(_leaves(jax.jit(in_blocks)(state.learner, blocks, jax.random.key(2))), _leaves(whole))
        assert float(whole[1]["applied_fraction"]) > 0


@pytest.mark.fast
def test_what_agrees_in_all_blocks_is_standardized_to_zero():
    x = jnp.full((BLOCKS, 3), 0.1).at[:, 0].add(1e-9)
    found = jax.vmap(lambda row: standardize(row, mean_weights(row > 0, ("block",)), ("block",)), axis_name="block")(x)
    np.testing.assert_array_equal(found, 0.0)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 12}, "num_envs: expected a multiple of 8 with a mesh, got 12"),
        ({"pool_size": 4}, "pool_size: expected a multiple of 8 with a mesh, got 4"),
        (
            {"num_steps": 1, "num_envs": 8},
            "num_minibatches: expected a divisor of the 1 steps of a batch, got 2 "
            r"\(in each of a mesh's 8 blocks of num_envs = 8\)",
        ),
        (
            {"mesh": Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("a", "b"))},
            "mesh: expected one axis of 1, 2, 4 or 8 devices",
        ),
    ],
)
def test_a_trainer_that_cannot_be_cut_into_blocks_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _trainer(_mesh()).replace(**changes).validate()


@pytest.mark.fast
def test_sources_and_learners_for_one_device_are_refused():
    trainer = _trainer(_mesh())
    with pytest.raises(ValueError, match="source: expected None with a mesh"):
        trainer.replace(source=OnPolicy(trainer._vector_env, 8)).validate()
    env, params = ja.make("MiniGrid-Empty-5x5-v0")
    with pytest.raises(ValueError, match="mesh: expected None, since BC learns on one device only"):
        ja.Trainer(env, params, ja.BC(network=ja.actor_critic(env.spec)), num_envs=8, mesh=_mesh()).validate()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.devices": "2"}, "train.devices: expected at most the 1 that there are, got 2"),
        ({"train.devices": "some"}, "train.devices: expected an integer or one of all or none, got 'some'"),
        ({"train.devices": "0"}, "train.devices: expected 1, 2, 4, 8 or all, got 0"),
        ({"train.devices": "3"}, "train.devices: expected 1, 2, 4, 8 or all, got 3"),
        ({"train.devices": "all", "num_seeds": "2"}, "num_seeds: expected 1 with train.devices, got 2"),
        ({"train.devices": "all", "train.num_envs": "20"}, "train.num_envs: expected a multiple of 8 with a mesh, got 20"),
    ],
)
def test_a_config_says_what_is_wrong_with_its_devices(tmp_path, overrides, message):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    with pytest.raises(ConfigError, match=message):
        config.build(config.read(path, overrides))


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("here", 2, 0), "--coordinator: expected HOST:PORT or auto, got here"),
        (("127.0.0.1:1", None, 0), "--num-processes: expected at least 1, got None"),
        (("127.0.0.1:1", 2, 2), "--process-id: expected 0 to 1, got 2"),
        ((None, 2, None), "--coordinator: expected HOST:PORT beside --num-processes and --process-id"),
    ],
)
def test_how_processes_meet_is_checked(arguments, message):
    coordinator, num_processes, process_id = arguments
    with pytest.raises(UsageError, match=message):
        distributed.initialize(coordinator, num_processes=num_processes, process_id=process_id)


@pytest.mark.fast
def test_the_commands_of_the_manual_are_known():
    calls = re.findall(r"jaxagent ((?:train|resume) [^\n`&]*)", MANUAL)
    assert len(calls) >= 7
    for call in calls:
        assert type(cli.parse(shlex.split(call))) in (runs.Train, runs.Resume)


def test_the_python_of_the_manual_runs():
    (code,) = re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)
    found = {}
    exec(code, found)
    assert found["metrics"]["env_steps"].tolist() == [2048, 2048]


# on several devices -----------------------------------------------------------------------------------------------------------


def _learn(memory: int, path: str) -> None:
    """What is begun on one device goes on on several and alone, and back on one device."""
    programs = {
        n: loop.Program(_trainer(_mesh(n), memory), loop.Schedule(2, segment=2), seed=0) for n in (1, 4 if memory else 2, 8)
    }

    def restored(num_devices: int, step: int):
        program = programs[num_devices]
        return checkpoint.restore(Path(path), {"trainer": program.trainer, "state": program.shapes()}, step=step).tree["state"]

    def save(step: int, state) -> None:
        checkpoint.save(Path(path), step, {"trainer": programs[1].trainer, "state": state}, metadata={}, keep=9)

    save(0, programs[1].init())
    _assert_close(_leaves(programs[8].init()), _leaves(restored(1, 0)))
    found = {}
    for num_devices, program in programs.items():
        state, rows = program.segment(restored(num_devices, 0), 2)
        assert len(state.source.vector.is_first.addressable_shards) == num_devices
        assert state.source.vector.is_first.addressable_shards[0].data.shape == (BLOCKS // num_devices, 2)
        found[num_devices] = _leaves((state, rows))
        save(num_devices, state)
    assert rows["env_steps"][0] < program.trainer.steps_per_update  # some are masked
    assert rows["applied_fraction"].max() < 1, rows["applied_fraction"]  # some are skipped
    ends = [_leaves(programs[1].segment(restored(1, step), 2)) for step in programs]
    for one, *several in (list(found.values()), ends):
        for other in several:
            _assert_close(other, one)


def _on_devices(count: int) -> dict[str, str]:
    """The environment of a child with so many devices."""
    return os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def _child(*arguments: str | int | Path) -> None:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, env=_on_devices(8), capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(2 * SECONDS)  # for the first time, when all is compiled
@pytest.mark.parametrize("memory", [0, 4])
def test_any_number_of_devices_learns_the_same(memory, tmp_path):
    _child("_learn", memory, tmp_path / "checkpoints")


@pytest.mark.parametrize(("arguments", "count"), [(("--devices", "2"), 2), (("--devices", "all"), None)])
def test_processors_count_as_devices(arguments, count, settings, tmp_path):
    flags = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    short = ("--train.num_updates", "1", "--train.checkpoint_every", "0")
    command = [sys.executable, "-m", "jaxagent", "train", settings, "--out", tmp_path / "run", *short, *arguments]
    done = subprocess.run(command, env=flags, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    (start,) = json.loads((tmp_path / "run" / "env.json").read_text())
    usable = max(n for n in (1, 2, 4, 8) if n <= distributed.processors())
    assert start["devices"]["local"] == (count or usable)
    resume = [sys.executable, "-m", "jaxagent", "resume", tmp_path / "run", "--updates", "2", "--devices", "4"]
    done = subprocess.run(resume, env=flags, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


# in several processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def _processes(*arguments: str | Path) -> Iterator[list[subprocess.Popen]]:
    """`jaxagent` in two processes of one device each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "jaxagent", *map(str, arguments), "--coordinator", address, "--num-processes", "2"]
    started = [
        subprocess.Popen([*command, "--process-id", str(i)], env=_on_devices(1), stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _finish(processes: list[subprocess.Popen]) -> list[str]:
    """What each wrote to its standard error."""
    written = [process.communicate(timeout=SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], written
    return written


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(CONFIG)
    return path


def _like(settings: Path):
    trainer, schedule = config.build(config.read(settings, {"train.devices": "1"}))
    program = loop.Program(trainer, schedule, seed=0)
    return {"trainer": program.trainer, "state": program.shapes()}


def _kill_one_of_two(settings: Path, run: RunDir, victim: int) -> str:
    """Kills it after the first checkpoint. Returns what the other wrote to its standard error before it ended."""
    with _processes("train", settings, "--out", run.path) as processes:
        deadline = time.monotonic() + SECONDS
        while not checkpoint.steps(run.checkpoints) and time.monotonic() < deadline:
            time.sleep(0.02)
        processes[victim].kill()
        _, written = processes[1 - victim].communicate(timeout=60)
    assert processes[1 - victim].returncode not in (0, None), written
    return written


@pytest.mark.timeout(3 * SECONDS)
def test_two_processes_killed_and_resumed_learn_what_two_devices_of_one_do(settings, tmp_path):
    one, two = RunDir(tmp_path / "one"), RunDir(tmp_path / "two")
    command = [sys.executable, "-m", "jaxagent", "train", settings, "--out", one.path, "--devices", "2"]
    done = subprocess.run(command, env=_on_devices(2), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    written = _kill_one_of_two(settings, two, victim=1)
    assert "error: process 0 lost the connection to another of the 2 processes" in written
    with _processes("resume", two.path) as processes:
        leader, other = _finish(processes)
    assert f"run {two.path}" in leader and str(two.path) not in other
    ends = [checkpoint.restore(run.checkpoints, _like(settings)).tree for run in (one, two)]
    _assert_close(*map(_leaves, ends))
    rows = [metrics.read(run.metrics) for run in (one, two)]
    assert [row["update"] for row in rows[1]] == list(range(10, 201, 10))
    for a, b in zip(*rows, strict=True):
        np.testing.assert_allclose(a["value_loss"], b["value_loss"], rtol=1e-3)
        assert a["env_steps"] == b["env_steps"]
    assert json.loads(two.evaluation.read_text())["update"] == 200


def test_kill_9_of_the_leader_ends_the_others(settings, tmp_path):
    written = _kill_one_of_two(settings, RunDir(tmp_path / "run"), victim=0)
    ours = "error: process 1 lost the connection to another of the 2 processes"
    assert ours in written or "the JAX distributed service detected fatal errors" in written  # whichever notices first


if __name__ == "__main__":
    globals()[sys.argv[1]](*(int(x) if x.isdecimal() else x for x in sys.argv[2:]))
