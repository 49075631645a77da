"""A worker of `executors.LocalWorkers`: `python -m jaxagent.sweep.worker DIRECTORY`, chunks in, answers out, a line each."""

import os
import sys
from pathlib import Path


def main() -> None:
    cpus = os.environ.get("JAXAGENT_CPUS")
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    from jaxagent.sweep.executors import answer, runner_of

    runner = runner_of(Path(sys.argv[1]))
    for line in sys.stdin:
        answers.write(answer(runner, line) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
