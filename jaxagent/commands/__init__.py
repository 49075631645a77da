"""What each command of the command line takes and does. What it needs is imported when it runs, so that help comes at once."""

from jaxagent.commands.bench import BENCHES, Bench
from jaxagent.commands.lists import Doctor, Envs, Learners
from jaxagent.commands.runs import Eval, Render, Resume, Train
from jaxagent.commands.sweeps import Report, Sweep

COMMANDS: dict[str, type] = {
    "train": Train,
    "resume": Resume,
    "sweep": Sweep,
    "eval": Eval,
    "render": Render,
    "report": Report,
    "bench": Bench,
    "envs": Envs,
    "learners": Learners,
    "doctor": Doctor,
}

__all__ = ["BENCHES", "COMMANDS", "Bench"]
