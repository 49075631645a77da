"""Trees of arrays as named host arrays and back: what a checkpoint stores of a leaf.

The bytes are laid out as the safetensors format has them, so other tools can read the file.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.types import PyTree

SAFETENSORS_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


class Leaf(NamedTuple):
    """What is stored of one array. A typed key is stored as its key data beside the name of its implementation."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    key_impl: str | None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        key = f" of a {self.key_impl} key" if self.key_impl else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{key}"


def leaf_name(path: Sequence[Any]) -> str:
    """A key path of `jax.tree_util` for people, such as `params/Dense_0/kernel`."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def describe(tree: PyTree) -> list[Leaf]:
    """Describes the leaves of a tree of arrays, NumPy arrays or `jax.ShapeDtypeStruct`s, in their order.

    Raises:
      ValueError: a leaf that is no array, has a dtype without a place in the format, or shares its path with another.
    """
    leaves = [_describe_leaf(leaf_name(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    seen: set[str] = set()
    for leaf in leaves:
        if leaf.path in seen:
            raise ValueError(f"two leaves are named {leaf.path}")
        seen.add(leaf.path)
    return leaves


def _describe_leaf(path: str, leaf: Any) -> Leaf:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        raise ValueError(f"{path}: expected an array, got {type(leaf).__name__}")
    if _is_key(leaf):
        data, impl = _describe_key(leaf)
        return Leaf(path, data.dtype.name, data.shape, impl)
    if leaf.dtype.name not in SAFETENSORS_NAMES:
        raise ValueError(f"{path}: dtype {leaf.dtype.name} cannot be stored; known are {', '.join(SAFETENSORS_NAMES)}")
    return Leaf(path, leaf.dtype.name, tuple(leaf.shape), None)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe_key(leaf: Any) -> tuple[jax.ShapeDtypeStruct, str]:
    """Traces, because `jax.random.key_impl` takes a key or a tracer but no `jax.ShapeDtypeStruct`."""
    impls: list[str] = []

    def key_data(key: jax.Array) -> jax.Array:
        impls.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    return jax.eval_shape(key_data, leaf), impls[0]


def differences(stored: Sequence[Leaf], expected: Sequence[Leaf]) -> list[str]:
    """One line for each path that is missing, unexpected, or of another shape, dtype or key implementation."""
    have = {leaf.path: leaf for leaf in stored}
    want = {leaf.path: leaf for leaf in expected}
    missing = [f"{path}: not in the checkpoint, expected {want[path]}" for path in want.keys() - have.keys()]
    extra = [f"{path}: {have[path]} in the checkpoint, not expected" for path in have.keys() - want.keys()]
    changed = [
        f"{path}: {have[path]} in the checkpoint, expected {want[path]}"
        for path in want.keys() & have.keys()
        if have[path] != want[path]
    ]
    return sorted(missing) + sorted(extra) + sorted(changed)


def to_host(tree: PyTree) -> list[np.ndarray]:
    """Copies the leaves to the host, in their order; every array C-contiguous and in native byte order."""
    stored = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return [_native(np.asarray(array, order="C")) for array in jax.device_get(stored)]


def _native(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def from_host(leaves: Sequence[Leaf], arrays: Sequence[np.ndarray], like: PyTree) -> PyTree:
    """Builds a tree like `like` (whose description `leaves` is): NumPy arrays where it has those, JAX arrays elsewhere.

    An array that `like` spreads over several devices is spread in the same way.
    """
    like_leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [_place(*each) for each in zip(leaves, arrays, like_leaves, strict=True)])


def _place(leaf: Leaf, array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray | np.generic):
        return array
    sharding = getattr(like, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1:
        placed = jnp.array(array)  # a copy, since the caller may donate it
    else:
        placed = jax.make_array_from_callback(array.shape, sharding, lambda part: np.array(array[part]))
    return placed if leaf.key_impl is None else jax.random.wrap_key_data(placed, impl=leaf.key_impl)


def raw(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array of any dtype."""
    return array.reshape(-1).view(np.uint8).data


def from_raw(leaf: Leaf, data: bytearray) -> np.ndarray:
    """The inverse of `raw`; the array is writable and owns `data`."""
    return np.frombuffer(data, jnp.dtype(leaf.dtype)).reshape(leaf.shape)


def safetensors_header(leaves: Sequence[Leaf]) -> bytes:
    """What stands in a safetensors file before the bytes of the leaves, which follow in order without gaps."""
    entries, offset = {}, 0
    for leaf in leaves:
        span = [offset, offset + leaf.nbytes]
        entries[leaf.path] = {"dtype": SAFETENSORS_NAMES[leaf.dtype], "shape": leaf.shape, "data_offsets": span}
        offset += leaf.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the arrays
    return len(text).to_bytes(8, "little") + text
