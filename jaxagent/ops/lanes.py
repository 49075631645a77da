"""How work is laid out when an outer `vmap` adds an axis of independent lanes: configurations or seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxagent.types import PyTree

Function = TypeVar("Function", bound=Callable[..., Any])


def one_by_one_on_cpu(function: Function) -> Function:
    """`function`, whose lanes run one after another under a `vmap` on CPUs, and side by side elsewhere.

    One lane's arrays then stay in a core's cache, where those of all lanes together would go through memory at every operation.
    Takes arrays only, in positional arguments; closing over traced values is not allowed, nor is reverse-mode differentiation.
    """

    @jax.custom_batching.custom_vmap
    def laned(*arguments: PyTree) -> PyTree:
        return function(*arguments)

    @laned.def_vmap
    def _rule(axis_size: int, in_batched: list[PyTree], *arguments: PyTree) -> tuple[PyTree, PyTree]:
        leaves, structure = jax.tree.flatten(arguments)
        differs = jax.tree.leaves(in_batched)

        def lane(function: Callable[..., PyTree], parts: list[jax.Array]) -> PyTree:
            """All of one lane, from its part of the leaves that differ between lanes."""
            ours = iter(parts)
            whole = [next(ours) if d else leaf for leaf, d in zip(leaves, differs, strict=True)]
            return function(*jax.tree.unflatten(structure, whole))

        out = jax.lax.platform_dependent(
            [leaf for leaf, d in zip(leaves, differs, strict=True) if d],
            cpu=lambda parts: jax.lax.map(partial(lane, laned), parts),  # `laned`, for the next outer vmap
            default=jax.vmap(partial(lane, function)),
        )
        return out, jax.tree.map(lambda _: True, out)

    return laned  # type: ignore[return-value]


@jax.custom_batching.custom_vmap
def largest(x: jax.Array) -> jax.Array:
    """The largest entry in any lane: one scalar for all lanes of any `vmap`, so that a loop or a branch may depend on it."""
    return jnp.max(x)


@largest.def_vmap
def _largest_of_lanes(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    return largest(jnp.max(x, axis=0)), False
