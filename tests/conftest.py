"""Tests run on the CPU, and keep compiled programs from one run to the next. Set before anything imports JAX."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxagent" / "tests"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: whoever writes there runs code here
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)

_MAPPINGS = Path("/proc/self/maps")
_MANY = 30_000  # of the 65,530 that Linux lets a process have


@pytest.fixture(scope="module", autouse=True)
def _room_for_programs() -> Iterator[None]:
    """Every compiled program takes memory mappings, and the process dies when there are no more."""
    yield
    if _MAPPINGS.exists() and len(_MAPPINGS.read_bytes().splitlines()) > _MANY:
        import jax  # only now, with the environment set

        jax.clear_caches()
