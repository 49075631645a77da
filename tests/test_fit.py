"""Work on as much as a batch holds: which size runs, and that nothing else changes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.ops.fit import fitted, ladder
from jaxagent.ops.lanes import one_by_one_on_cpu


@pytest.mark.parametrize(
    ("most", "lengths"), [(3, (3,)), (8, (8,)), (9, (8, 9)), (24, (8, 16, 24)), (50, (13, 26, 50)), (512, (128, 256, 512))]
)
def test_a_ladder_has_a_quarter_a_half_and_the_whole(most, lengths):
    assert ladder(most) == lengths


SIZES = [(8, 10), (16, 20), (24, 80)]


def run(steps: jax.Array, tokens: jax.Array, axes: tuple[str, ...] = ()) -> jax.Array:
    """The size that was chosen, as a number."""
    return fitted(lambda size, x: x + 100 * size[0] + size[1], SIZES, [steps, tokens], axes=axes)(jnp.int32(0))


@pytest.mark.parametrize(
    ("steps", "tokens", "size"),
    [(1, 1, (8, 10)), (8, 10, (8, 10)), (9, 10, (16, 20)), (8, 11, (16, 20)), (1, 21, (24, 80)), (24, 80, (24, 80))],
)
def test_the_first_size_runs_that_holds_all_that_is_needed(steps, tokens, size):
    assert jax.jit(run)(jnp.int32(steps), jnp.int32(tokens)) == 100 * size[0] + size[1]


def test_lanes_choose_for_themselves_where_they_take_turns_and_together_where_they_do_not():
    steps, tokens = jnp.array([3, 12, 9]), jnp.array([3, 3, 3])
    in_turn = jax.jit(jax.vmap(one_by_one_on_cpu(run)))(steps, tokens)
    np.testing.assert_array_equal(in_turn, [810, 1620, 1620])
    np.testing.assert_array_equal(jax.jit(jax.vmap(run))(steps, tokens), 1620)


def test_over_axes_the_largest_need_decides():
    found = jax.vmap(partial(run, axes=("block",)), axis_name="block")(jnp.array([3, 12]), jnp.array([3, 3]))
    np.testing.assert_array_equal(found, 1620)
