"""Where chunks run: in this process, in workers of this machine, on a Ray cluster, as Slurm jobs.

A worker is told chunks and answers with rows, both as JSON; states and curves go through the sweep's directory, which on a
cluster is on a file system that all nodes share. A worker that dies costs its chunk, which another one begins again.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import jax

from jaxagent.distributed import processors
from jaxagent.errors import JaxagentError, UsageError
from jaxagent.lanes import stacked
from jaxagent.sweep import spec
from jaxagent.sweep.chunks import Runner
from jaxagent.sweep.ledger import Row
from jaxagent.sweep.scheduling import Chunk, Job, Origin
from jaxagent.sweep.spec import Sweep, Trial

SPEC = "sweep.toml"  # in the sweep's directory
_ATTEMPTS = 3  # at a chunk whose workers die
_POLL = 0.2  # seconds
_CPU_WIDTH, _ACCELERATOR_WIDTH = 16, 256  # lanes a device, where the spec does not say
_MEMORY_SHARE = 0.8  # of a device's
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
MakeExecutor = Callable[[Sweep, Path, "Report"], "Executor"]
Report = Callable[[int], None]  # lane updates made, where they are known at once; called often, and may raise to stop


class OutOfMemory(Exception):
    """A chunk that did not fit."""

    def __init__(self, chunk: Chunk) -> None:
        super().__init__(chunk.id)
        self.chunk = chunk


class Executor(Protocol):
    """Use it as a context: workers end with it.

    Attributes:
      capacity: chunks at once.
      devices: that a chunk's lanes are split over.
    """

    capacity: int
    devices: int

    def width(self, trial: Trial, num_lanes: int) -> int:
        """Lanes that a chunk of the trial's group has room for, where `num_lanes` are to be trained in all."""

    def submit(self, chunk: Chunk) -> None:
        """Starts a chunk."""

    def wait(self) -> tuple[Chunk, list[Row]]:
        """The next chunk that is finished, and its rows.

        Raises:
          OutOfMemory: it did not fit.
          JaxagentError: a chunk that one worker after another dies of.
        """

    def close(self) -> None:
        """Ends the workers."""


class InProcess:
    """Runs chunks here, one at a time, their lanes split over the local devices."""

    capacity = 1

    def __init__(self, sweep: Sweep, directory: Path, report: Report) -> None:
        self._runner, self._report = Runner(sweep, directory), report
        self._waiting: list[Chunk] = []
        self.devices = jax.local_device_count()

    def width(self, trial: Trial, num_lanes: int) -> int:
        """As many lanes as the compiler says will fit."""
        per_device = _CPU_WIDTH if jax.default_backend() == "cpu" else _ACCELERATOR_WIDTH
        width = self.devices * min(per_device, -(-num_lanes // self.devices))
        while width > self.devices:
            needed = self._runner.program(trial, width).memory(stacked([trial.trainer] * width))
            if needed is None or needed <= _MEMORY_SHARE * memory_limit():
                break
            width = max(1, width // self.devices // 2) * self.devices
        return width

    def submit(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def wait(self) -> tuple[Chunk, list[Row]]:
        chunk = self._waiting.pop()
        try:
            return chunk, self._runner.run(chunk, self._report)
        except jax.errors.JaxRuntimeError as error:
            if _OUT_OF_MEMORY not in str(error):
                raise
        raise OutOfMemory(chunk)

    def close(self) -> None:
        return


def memory_limit() -> int:
    """Bytes of each local device; CPU devices share the host's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()


class _Remote:
    """What executors whose workers have one device each share."""

    devices = 1

    def __init__(self, directory: Path, report: Report, capacity: int) -> None:
        self.capacity = capacity
        self._directory, self._report = directory, report
        self._deaths: dict[str, int] = {}

    def width(self, trial: Trial, num_lanes: int) -> int:
        per_device = _ACCELERATOR_WIDTH if _accelerators() else _CPU_WIDTH
        return max(1, min(per_device, -(-num_lanes // self.capacity)))

    def _died(self, chunk: Chunk, why: str) -> None:
        """Counts it.

        Raises:
          JaxagentError: it was the last attempt.
        """
        self._deaths[chunk.id] = self._deaths.get(chunk.id, 0) + 1
        if self._deaths[chunk.id] >= _ATTEMPTS:
            raise JaxagentError(f"chunk {chunk.id}: its worker died {_ATTEMPTS} times; the last words:\n{why}")

    def _rows(self, chunk: Chunk, answer: str) -> tuple[Chunk, list[Row]]:
        content = json.loads(answer)
        if content["out_of_memory"]:
            raise OutOfMemory(chunk)
        return chunk, content["rows"]


class LocalWorkers(_Remote):
    """Processes of this machine, spawned, each with a device of its own: an accelerator, or its share of the processors."""

    def __init__(self, directory: Path, report: Report, capacity: int) -> None:
        super().__init__(directory, report, capacity)
        self._idle = [_Worker(directory, place, capacity) for place in range(capacity)]
        self._busy: dict[_Worker, Chunk] = {}

    def submit(self, chunk: Chunk) -> None:
        worker = self._idle.pop()
        worker.tell(to_json(chunk))
        self._busy[worker] = chunk

    def wait(self) -> tuple[Chunk, list[Row]]:
        with selectors.DefaultSelector() as selector:
            for worker in self._busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            while not (ready := selector.select(_POLL)):
                self._report(0)
        worker = ready[0][0].data
        chunk, answer = self._busy.pop(worker), worker.answer()
        if answer is not None:
            self._idle.append(worker)
            return self._rows(chunk, answer)
        self._died(chunk, worker.end())
        self._idle.append(_Worker(self._directory, worker.place, self.capacity))
        self.submit(chunk)
        return self.wait()

    @property
    def pids(self) -> list[int]:
        """Of the workers that have a chunk."""
        return [worker.pid for worker in self._busy]

    def close(self) -> None:
        for worker in (*self._idle, *self._busy):
            worker.end()


class _Worker:
    """A process that reads chunks from its standard input, a line each, and writes its answers to its standard output."""

    def __init__(self, directory: Path, place: int, count: int) -> None:
        self.place = place
        self._errors = open(directory / f"worker-{place}.log", "w+b")  # noqa: SIM115 (closed by `end`)
        command = [sys.executable, "-m", "jaxagent.sweep.worker", str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=_environment(place, count)
        )
        assert self._process.stdout is not None
        self.output, self.pid = self._process.stdout, self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # dead: its output ends, and whoever waits sees that
            return

    def answer(self) -> str | None:
        """The next answer, None if there will be none."""
        line = self.output.readline()
        return line.decode() if line.endswith(b"\n") else None

    def end(self) -> str:
        """Kills it. Returns the end of what it wrote to its standard error."""
        self._process.kill()
        self._process.communicate()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        self._errors.close()
        return "\n".join(text.splitlines()[-3:])


def _accelerators() -> list[str]:
    """Numbers of the accelerators of this machine, found without starting a backend, which would take their memory."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [number for number in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if number]
    return [path.name.removeprefix("nvidia") for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]


def _environment(place: int, count: int) -> dict[str, str]:
    """One accelerator each, or an equal share of the processors."""
    accelerators = _accelerators()
    if accelerators:
        return os.environ | {"CUDA_VISIBLE_DEVICES": accelerators[place % len(accelerators)]}
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    own = cpus[place % len(cpus) :: count] or cpus
    return os.environ | {"JAX_PLATFORMS": "cpu", "JAXAGENT_CPUS": ",".join(map(str, own))}


class Ray(_Remote):
    """Actors of a Ray cluster, one for each accelerator, or for each processor where there is none.

    Args:
      address: of the cluster; a new one on this machine unless given. A remote one must demand tokens: whoever can reach a
        cluster without runs code on it (CVE-2023-48022).
    """

    def __init__(self, directory: Path, report: Report, capacity: int | None = None, address: str | None = None) -> None:
        _check_ray(address)
        import ray

        self._ray = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        local = (
            {"num_cpus": capacity, "include_dashboard": False, "object_store_memory": 100 * 2**20} if address is None else {}
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's: it does not see that an exec follows
            ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
        resources = ray.cluster_resources()
        on_gpus = resources.get("GPU", 0) >= 1
        super().__init__(directory.resolve(), report, capacity or max(1, int(resources["GPU" if on_gpus else "CPU"])))
        needs = {"num_gpus": 1} if on_gpus else {"num_cpus": 1}
        self._actor_class = ray.remote(max_restarts=0, **needs)(_RayActor)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Chunk]] = {}

    def submit(self, chunk: Chunk) -> None:
        actor = self._idle.pop() if self._idle else self._actor_class.remote(str(self._directory))
        self._busy[actor.run.remote(to_json(chunk))] = actor, chunk

    def wait(self) -> tuple[Chunk, list[Row]]:
        while True:
            ready, _ = self._ray.wait(list(self._busy), timeout=_POLL)
            if ready:
                break
            self._report(0)
        actor, chunk = self._busy.pop(ready[0])
        try:
            answer = self._ray.get(ready[0])
        except self._ray.exceptions.RayActorError as error:
            self._died(chunk, str(error).splitlines()[0])
            self.submit(chunk)
            return self.wait()
        self._idle.append(actor)
        return self._rows(chunk, answer)

    def close(self) -> None:
        self._ray.shutdown()


def _check_ray(address: str | None) -> None:
    if find_spec("ray") is None:
        raise UsageError('--executor ray needs Ray: pip install "jaxagent[ray]"')
    if address is not None and os.environ.get("RAY_AUTH_MODE") != "token":
        raise UsageError(
            f"--address {address}: a cluster that asks for no token runs anyone's code\n"
            "start it with RAY_AUTH_MODE=token, and set that and RAY_AUTH_TOKEN here"
        )


class _RayActor:
    """Lives in a process of its own, maybe on another machine."""

    def __init__(self, directory: str) -> None:
        self._runner = runner_of(Path(directory))

    def run(self, chunk: str) -> str:
        return answer(self._runner, chunk)


class Slurm(_Remote):
    """Jobs of a Slurm cluster, one a chunk, through submitit; its own processes where there is no Slurm (`cluster="local"`).

    Args:
      options: parameters of submitit's executor, such as slurm_partition, timeout_min or gpus_per_node.
    """

    def __init__(
        self, directory: Path, report: Report, capacity: int, options: Mapping[str, Any] = {}, cluster: str = "slurm"
    ) -> None:
        _check_slurm(cluster)
        import submitit

        super().__init__(directory.resolve(), report, capacity)
        self._executor = submitit.AutoExecutor(self._directory / "jobs", cluster=cluster)
        self._executor.update_parameters(**{"timeout_min": 240, "name": "jaxagent-sweep", **options})
        self._jobs: list[tuple[Any, Chunk]] = []

    def submit(self, chunk: Chunk) -> None:
        self._jobs.append((self._executor.submit(_job, str(self._directory), to_json(chunk)), chunk))

    def wait(self) -> tuple[Chunk, list[Row]]:
        while not (ended := [pair for pair in self._jobs if pair[0].done()]):
            self._report(0)
            time.sleep(_POLL)
        job, chunk = ended[0]
        self._jobs.remove(ended[0])
        error = job.exception()
        if error is None:
            return self._rows(chunk, job.result())
        self._died(chunk, str(error).splitlines()[0])
        self.submit(chunk)
        return self.wait()

    def close(self) -> None:
        for job, _ in self._jobs:
            job.cancel()


def _check_slurm(cluster: str) -> None:
    if find_spec("submitit") is None:
        raise UsageError('--executor slurm needs submitit: pip install "jaxagent[slurm]"')
    if cluster == "slurm" and shutil.which("srun") is None:
        raise UsageError("--executor slurm: expected a machine from which Slurm jobs can be sent, found no command srun here")


def _job(directory: str, chunk: str) -> str:
    return answer(runner_of(Path(directory)), chunk)


def chosen(name: str, *, workers: int | None, address: str | None, devices: int | None) -> MakeExecutor:
    """What makes the executor of this name. Call it before a backend starts, which it tells how many devices there are.

    Raises:
      UsageError: an option that this executor does not take, more devices than there are, or no such cluster from here.
    """
    given = {"workers": workers, "address": address, "devices": devices}
    takes = {"local": {"devices"}, "workers": {"workers"}, "ray": {"workers", "address"}, "slurm": {"workers"}}[name]
    for option, value in given.items():
        if value is not None and option not in takes:
            raise UsageError(f"--{option}: not an option of --executor {name}, which takes {', '.join(sorted(takes))}")
    if name == "local":
        with suppress(RuntimeError):  # called from Python, after a backend has started: with the devices that it has
            jax.config.update("jax_num_cpu_devices", devices or processors())
        if devices is not None and not 1 <= devices <= jax.local_device_count():
            raise UsageError(f"--devices: expected 1 to {jax.local_device_count()}, got {devices}")
        return InProcess
    if name == "ray":
        _check_ray(address)
    if name == "slurm":
        _check_slurm("slurm")
    jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    count = workers or len(_accelerators()) or processors()
    if name == "workers":
        return lambda sweep, directory, report: LocalWorkers(directory, report, count)
    if name == "ray":
        return lambda sweep, directory, report: Ray(directory, report, workers, address)
    return lambda sweep, directory, report: Slurm(directory, report, count)


# on the worker's side ---------------------------------------------------------------------------------------------------------


def runner_of(directory: Path) -> Runner:
    """A runner for the sweep in a directory."""
    return Runner(spec.read_resolved(directory / SPEC), directory)


def answer(runner: Runner, chunk: str) -> str:
    """Runs a chunk: JSON in, JSON out."""
    try:
        return json.dumps({"rows": runner.run(from_json(chunk)), "out_of_memory": False})
    except jax.errors.JaxRuntimeError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise
    return json.dumps({"rows": [], "out_of_memory": True})


def to_json(chunk: Chunk) -> str:
    """A chunk on one line."""
    jobs = [{**job._asdict(), "settings": dict(job.settings), "origin": job.origin and list(job.origin)} for job in chunk.jobs]
    return json.dumps({"group": chunk.group, "width": chunk.width, "start": chunk.start, "rung": chunk.rung, "jobs": jobs})


def from_json(text: str) -> Chunk:
    """The inverse of `to_json`."""
    content = json.loads(text)
    return Chunk(**{**content, "jobs": tuple(_job_from(job) for job in content["jobs"])})


def _job_from(content: Mapping[str, Any]) -> Job:
    origin: Sequence[Any] | None = content["origin"]
    return Job(**{**content, "origin": None if origin is None else Origin(*origin)})
