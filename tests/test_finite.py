import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import finite
from jaxagent.finite import all_finite, first_nonfinite


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_first_bad_leaf_is_named(bad: float, dtype: jnp.dtype) -> None:
    tree = {
        "count": jnp.int32(2**31 - 1),
        "key": jax.random.key(0),
        "params": {
            "a": jnp.ones((2, 2), dtype),
            "b": [jnp.ones(3, dtype), jnp.ones(3, dtype).at[1].set(bad)],
            "c": jnp.array(bad),
        },
    }
    assert first_nonfinite(tree) == "params/b/1"
    assert not all_finite(tree)


def test_finite_trees() -> None:
    for tree in ({}, {"n": 1, "b": True, "x": 2.5, "none": None}, [np.zeros((0, 3)), jnp.array(3e38), np.array([True])]):
        assert first_nonfinite(tree) is None
        assert all_finite(tree)


def test_host_numbers_count() -> None:
    assert first_nonfinite({"loss": float("nan")}) == "loss"


def test_lanes_are_told_apart() -> None:
    lanes = jax.vmap(all_finite)({"w": jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [0.0, 0.0]])})
    assert lanes.tolist() == [True, False, True]


def test_no_retrace(monkeypatch) -> None:
    traces = []

    def count(leaves: list[jax.Array]) -> jax.Array:
        traces.append(len(leaves))
        return finite._finite_leaves(leaves)

    monkeypatch.setattr(finite, "_jitted_finite_leaves", jax.jit(count))
    for value in (0.0, 1.0):
        first_nonfinite({"a": jnp.full(3, value), "b": jnp.full((), value)})
    assert traces == [2]
