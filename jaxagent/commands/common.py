"""What commands share: settings on the command line, complaints about them, and how results are shown."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Suppress

from jaxagent.errors import UsageError

Overrides = Annotated[Mapping[str, str], Suppress]  # settings of a config by dotted path


def show(result: Mapping[str, Any], *, as_json: bool, text: Callable[[Any], str] | None = None) -> None:
    from jaxagent.files import jsonable

    if as_json:
        print(json.dumps(jsonable(result), allow_nan=False))
    else:
        print((text or _lines)(result))


def _lines(result: Mapping[str, Any]) -> str:
    """Named numbers, each with its interval where it has one."""
    lines = []
    for name, value in result.items():
        if name.endswith("_ci95") or value is None or isinstance(value, list):
            continue
        interval = result.get(f"{name}_ci95")
        spread = "" if interval is None else f"  (95%: {interval[0]:.4g} to {interval[1]:.4g})"
        lines.append(f"{name:14} {value if isinstance(value, str) else f'{value:.6g}'}{spread}")
    return "\n".join(lines)


def blamed_on_usage(call: Callable[[], Any]) -> Any:
    """Calls, and blames a ValueError on the command line."""
    try:
        return call()
    except ValueError as error:
        raise UsageError(str(error)) from error


def no_file_in_the_way(option: str, directory: Path | None) -> None:
    """Blames the command line for the path of a directory where a file is."""
    if directory is None:
        return
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        shown = directory if existing == directory.absolute() else existing
        raise UsageError(f"{option}: expected a directory, new or there, but {shown} is a file")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise UsageError(f"--seed: expected 0 to {2**31 - 1}, got {seed}")


def at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"--{name}: expected at least 1, got {size}")
