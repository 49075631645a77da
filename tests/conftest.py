"""Tests run on the CPU, and keep compiled programs from one run to the next. Set before anything imports JAX."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxagent" / "tests"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: whoever writes there runs code here
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
