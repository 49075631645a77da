"""Many runs: training them side by side, and comparing what came of them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from jaxagent.commands.common import at_least_one, no_file_in_the_way, show
from jaxagent.errors import JaxagentError, UsageError


@dataclass(frozen=True)
class Sweep:
    """Train many settings and seeds side by side, as a spec says, and report which is best.

    Run it again to go on after a stop, or with more samples, seeds or values of grids.

    Attributes:
      spec: TOML file; docs/sweeps.md says what it takes.
      out: Directory of the sweep; sweeps/NAME unless given.
      executor: Where lanes are trained: in this process, in worker processes of this machine with a device each, on a Ray
        cluster, or as Slurm jobs. The last two need a directory that all nodes share.
      workers: Chunks of lanes at once, by workers, ray or slurm; one for each device, or processor, unless given.
      address: Of a Ray cluster, which has to ask for tokens; a local one unless given.
      devices: Devices to split lanes over in this process; all unless given. CPUs count a processor each.
    """

    spec: Positional[Path]
    out: Path | None = None
    executor: Literal["local", "workers", "ray", "slurm"] = "local"
    workers: int | None = None
    address: str | None = None
    devices: int | None = None

    def run(self) -> None:
        from jaxagent.loop import Interrupted
        from jaxagent.sweep import driver, executors, spec

        directory = self.out or Path("sweeps") / self.spec.stem
        no_file_in_the_way("--out", directory)
        if self.workers is not None:
            at_least_one(workers=self.workers)
        make_executor = executors.chosen(self.executor, workers=self.workers, address=self.address, devices=self.devices)
        board = driver.Board(driver.with_objective(spec.read(self.spec)))
        print(f"sweep {directory}", file=sys.stderr)
        with driver.opened(directory, board.sweep) as rows:
            try:
                driver.run(board, directory, rows, make_executor=make_executor)
            except Interrupted as stop:
                print(f"{stop}\ngo on with the same command", file=sys.stderr)
                raise SystemExit(stop.exit_code) from stop
        Report((directory,)).run()
        failed = sum(row["status"] == "failed" for row in board.own_rows())
        if failed:
            raise JaxagentError(f"{failed} of {len(board.trials) * board.sweep.plan.seeds} lanes failed; the report says why")


@dataclass(frozen=True)
class Report:
    """Compare the settings of a sweep, or several runs, on one HTML page: which is best, and how sure that is.

    Runs are compared by their success rate, or by the return where there is none. Beside it stand return, performance, turns
    (or steps) and latency.

    Attributes:
      directories: A sweep's directory, or those of runs.
      out: HTML file to write; report.html in the first directory unless given.
      json: Print one JSON object instead, with the same content; the page is written only if --out is given.
      png: Directory to save the figures in.
      csv: File to write a sweep's ledger to, a row for each rung that a lane came to.
    """

    directories: Positional[tuple[Path, ...]]
    out: Path | None = None
    json: bool = False
    png: Path | None = None
    csv: Path | None = None

    def run(self) -> None:
        from jaxagent.report import analysis, figures, page, study
        from jaxagent.sweep import ledger

        if not self.directories:
            raise UsageError("expected the directory of a sweep, or those of runs")
        for option, file in (("--out", self.out), ("--csv", self.csv)):
            if file is not None and not file.parent.is_dir():
                raise UsageError(f"{option}: {file.parent} is no directory")
        no_file_in_the_way("--png", self.png)
        read = study.read(self.directories)
        if self.csv is not None:
            if read.kind != "sweep":
                raise UsageError("--csv: expected a sweep's directory, since runs have no ledger")
            ledger.export_csv(self.directories[0], self.csv)
        for warning in read.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        found = analysis.analyse(read)
        if self.png is not None:
            figures.save_png(read, found, self.png)
        out = self.out or (None if self.json else self.directories[0] / "report.html")
        if out is not None:
            page.write(read, found, out)
        if self.json:
            show(found, as_json=True)
            return
        print(page.text(found))
        print(out)
