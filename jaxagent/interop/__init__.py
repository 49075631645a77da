"""Other libraries' environments as ours and ours as theirs, one module a library: each imports its library when it is used."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxagent.interop import farama as farama
    from jaxagent.interop import gymnasium as gymnasium
    from jaxagent.interop import gymnax as gymnax

__all__ = ["farama", "gymnasium", "gymnax"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
