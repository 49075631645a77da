"""The NaN guard: is every number of a tree finite, and if not, where is the first that is not?"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxagent.leaves import leaf_name
from jaxagent.types import PyTree


def all_finite(tree: PyTree) -> jax.Array:
    """Whether every floating-point element is finite. A bool scalar; traceable, so a lane of a sweep has its own."""
    return _finite_leaves([leaf for _, leaf in _float_leaves(tree)]).all()


def first_nonfinite(tree: PyTree) -> str | None:
    """The path of the first floating-point leaf that holds NaN or infinity, such as `params/Dense_0/kernel`, or None.

    One compiled reduction and one transfer of a bool a leaf, so it is cheap enough to run between any two segments.
    """
    named = _float_leaves(tree)
    finite = jax.device_get(_jitted_finite_leaves([leaf for _, leaf in named]))
    return next((name for (name, _), is_finite in zip(named, finite, strict=True) if not is_finite), None)


def _float_leaves(tree: PyTree) -> list[tuple[str, jax.Array]]:
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(leaf_name(path), leaf) for path, leaf in named if _is_float(leaf)]


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)


def _finite_leaves(leaves: Sequence[jax.Array]) -> jax.Array:
    """Bool `[len(leaves)]`."""
    return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves], bool)


_jitted_finite_leaves = jax.jit(_finite_leaves)
