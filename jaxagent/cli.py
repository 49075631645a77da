"""The command line, `jaxagent COMMAND`: parsing, and what goes wrong. `jaxagent.commands` holds the commands."""

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

import jaxagent
from jaxagent.commands import BENCHES, COMMANDS, Bench, Sweep
from jaxagent.errors import JaxagentError, ResourceError, UsageError

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")  # devices and the host say it differently


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code; see `jaxagent.errors`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    _keep_compiled_programs()
    try:
        parse([argument for argument in arguments if argument != "--debug"]).run()
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        return _report(error)
    return 0


def _keep_compiled_programs() -> None:
    """Lets JAX keep them in a private directory, so that a second start takes seconds; whoever writes there runs code here."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(home) / "jaxagent" / "xla"
    with contextlib.suppress(OSError, RuntimeError):  # without a home that can be written, programs are compiled anew
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))


def _report(error: Exception) -> int:
    """Says what went wrong in at most five lines. Returns the exit code."""
    if isinstance(error, JaxagentError):
        print("\n".join(f"error: {error}".splitlines()[:5]), file=sys.stderr)
        return error.exit_code
    first_line = (str(error).splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError) or any(sign in first_line for sign in _OUT_OF_MEMORY):
        print(f"error: out of memory: {first_line}\nfewer environments, steps or episodes at once need less", file=sys.stderr)
        return ResourceError.exit_code
    print(f"internal error: {type(error).__name__}: {first_line}\nwith --debug the traceback is shown", file=sys.stderr)
    return JaxagentError.exit_code


def parse(arguments: Sequence[str]) -> Any:
    """The command that arguments describe.

    Raises:
      UsageError: an unknown command or option, with the nearest known one, or a missing or malformed value.
      SystemExit: help was asked for, and printed.
    """
    if "--version" in arguments:
        print(f"jaxagent {jaxagent.__version__}")
        raise SystemExit
    command = _command_type(arguments)
    takes_overrides = command is not None and "overrides" in {f.name for f in dataclasses.fields(command)}
    rest, overrides = _split_overrides(arguments) if takes_overrides else (list(arguments), {})
    if command is not None:
        _check_flags(rest, command)
    try:
        parsed = _tyro(rest)
    except SystemExit:
        if takes_overrides:
            _print_settings(rest, overrides)
        raise
    if not overrides:
        return parsed
    if command in BENCHES.values():
        return Bench(dataclasses.replace(parsed.what, overrides=overrides))
    return dataclasses.replace(parsed, overrides=overrides)


def _command_type(arguments: Sequence[str]) -> type | None:
    """The dataclass of the command, None where there is none yet."""
    words = [word for word in arguments[:2] if not word.startswith("-")]
    known, found = COMMANDS, None
    for word in words[: 2 if words[:1] == ["bench"] else 1]:
        if word not in known:
            raise UsageError(f"unknown command {word!r}; {_nearest(word, known)}")
        found = known[word]
        known = BENCHES
    return found


def _split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--table.name value` and `--table.name=value` out."""
    rest, overrides = [], {}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or "." not in name:
            rest.append(argument)
            continue
        given = value if equals else next(remaining, None)
        if given is None or given.startswith("--"):
            raise UsageError(f"{name}: expected a value behind it")
        overrides[name[2:].replace("-", "_")] = given
    return rest, overrides


def _check_flags(arguments: Sequence[str], command: type) -> None:
    options = [f for f in dataclasses.fields(command) if f.default is not dataclasses.MISSING]  # others are positional
    names = [f.name.rstrip("_") for f in options]  # `in_` is --in
    known = ["--help", *(f"--{name.replace('_', '-')}" for name in names)]
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            if command is Sweep and (setting := name[2:].replace("-", "_")) in _plan_names():
                raise UsageError(f"unknown option {name}; the spec sets {setting} in its table sweep")
            raise UsageError(f"unknown option {name}; {_nearest(name, known)}")


def _plan_names() -> Collection[str]:
    from jaxagent.sweep import spec

    return spec.plan_schema()


def _print_settings(arguments: Sequence[str], overrides: Mapping[str, str]) -> None:
    """Lists what the config among the arguments sets with the overrides, and what else it could."""
    for path in [Path(argument) for argument in arguments if argument.endswith(".toml")]:
        from jaxagent import config, schema
        from jaxagent.envs import registry

        print(f"\nsettings, with their values in {path}; lists as [64,64] or 64,64:")
        for name, value, known in config.settings(config.read(path, overrides)):
            shown = "" if value is None else registry.written_option(value)
            print(f"  --{name:28} {shown:12} {schema.expected(known.hint)}; {known.doc}".rstrip("; "))


def _nearest(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def _tyro(arguments: Sequence[str]) -> Any:
    union: Any = Union[tuple(Annotated[command, subcommand(name)] for name, command in COMMANDS.items())]  # noqa: UP007
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                union,
                prog="jaxagent",
                description="Train agents on thousands of parallel episodes. Errors show a traceback with --debug.",
                args=list(arguments),
                config=(OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_unboxed(complaint.getvalue())) from stop


def _unboxed(complaint: str) -> str:
    """The text of a box that tyro draws, in at most three lines."""
    lines = [line.strip("╭╮╰╯│─ ") for line in complaint.splitlines()]
    lines = [line for line in lines if line.strip("-") and "helptext" not in line and "--help" not in line]
    return "\n".join(lines[:3])
