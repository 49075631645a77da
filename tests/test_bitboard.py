"""Sets as bit masks against NumPy and plain Python."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.envs import bitboard, symbols

pytestmark = pytest.mark.fast
HEIGHT, WIDTH = 7, 9


def masks(count, density=0.5, seed=0):
    return np.random.default_rng(seed).random((count, HEIGHT, WIDTH)) < density


def unpacked(board):
    return np.asarray(bitboard.unpack(board, WIDTH))


def words(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def test_pack_is_the_inverse_of_unpack():
    for mask in masks(3):
        np.testing.assert_array_equal(unpacked(bitboard.pack(jnp.asarray(mask))), mask)


def test_cells_and_windows():
    assert np.argwhere(unpacked(bitboard.cell(3, 5, HEIGHT))).tolist() == [[5, 3]]
    assert not bitboard.cell(3, HEIGHT, HEIGHT).any()
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[2:6, 1:4] = True
    np.testing.assert_array_equal(unpacked(bitboard.window(1, 2, 3, 4, HEIGHT)), expected)


@pytest.mark.parametrize("direction", range(4))
@pytest.mark.parametrize("steps", [1, 2, 16])
def test_shift(direction, steps):
    dx, dy = steps * symbols.DIRECTION_XY[direction]
    (mask,) = masks(1)
    expected = np.zeros_like(mask)
    for y, x in np.argwhere(mask):
        if 0 <= x + dx < WIDTH and 0 <= y + dy < HEIGHT:
            expected[y + dy, x + dx] = True
    np.testing.assert_array_equal(unpacked(bitboard.shift(bitboard.pack(jnp.asarray(mask)), direction, steps)), expected)


def test_below_is_the_high_half_of_a_product():
    given = np.array([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1, *words(100)], np.uint32)
    for n in (0, 1, 6, 7, 1000, 2**16 - 1):
        expected = [int(word) * n >> 32 for word in given]
        np.testing.assert_array_equal(bitboard.below(jnp.asarray(given), n), expected)


def test_happens_as_often_as_told():
    # 4096 words at equal distances: an eighth of them is below 1/8
    given = jnp.arange(4096, dtype=jnp.uint32) << 20
    for chance, times in ((0.0, 0), (0.125, 512), (0.5, 2048), (1.0, 4096)):
        assert bitboard.happens(given, chance).sum() == times


def test_ranks():
    given = np.array([5, 2**32 - 1, 5, 0, 7], np.uint32)
    assert bitboard.ranks(jnp.asarray(given)).tolist() == [1, 4, 2, 0, 3]
    given = words(20)
    np.testing.assert_array_equal(bitboard.ranks(jnp.asarray(given)), np.argsort(np.argsort(given)))


def test_nth_set_bit():
    for word in [1, 2**31, 2**32 - 1, *words(50)]:
        bits = [bit for bit in range(32) if int(word) >> bit & 1]
        found = bitboard.nth(jnp.uint32(word), jnp.arange(len(bits)))
        assert found.tolist() == bits
        assert bitboard.count(jnp.uint32(word)) == len(bits)


def test_choose_reaches_every_cell_equally_often():
    (mask,) = masks(1, density=0.3)
    total = mask.sum()
    evenly = jnp.asarray(((np.arange(3 * total) + 0.5) * 2**32 / (3 * total)).astype(np.uint32))  # three words a cell
    x, y, found = jax.vmap(bitboard.choose, in_axes=(0, None))(evenly, bitboard.pack(jnp.asarray(mask)))
    chosen = np.zeros(mask.shape, int)
    np.add.at(chosen, (np.asarray(y), np.asarray(x)), 1)
    np.testing.assert_array_equal(chosen, 3 * mask)
    assert found.all()


def test_choose_from_nothing():
    _, y, found = bitboard.choose(jnp.uint32(2**31), jnp.zeros(HEIGHT, jnp.uint32))
    assert not found and y == HEIGHT


def steps_from(seeds, passable):
    """Breadth-first search: steps to every cell, -1 for no way."""
    steps = np.where(seeds, 0, -1)
    queue = deque(map(tuple, np.argwhere(seeds)))
    while queue:
        y, x = queue.popleft()
        for there in ((y, x + 1), (y + 1, x), (y, x - 1), (y - 1, x)):
            if 0 <= there[0] < HEIGHT and 0 <= there[1] < WIDTH and passable[there] and steps[there] < 0:
                steps[there] = steps[y, x] + 1
                queue.append(there)
    return steps


@pytest.mark.parametrize("density", [0.4, 0.6, 0.8, 1.0])
def test_flood_and_distances(density):
    for seed in range(5):
        (passable,) = masks(1, density, seed)
        seeds = np.zeros_like(passable)
        seeds[HEIGHT // 2, WIDTH // 2] = True
        expected = steps_from(seeds, passable)
        boards = bitboard.pack(jnp.asarray(seeds)), bitboard.pack(jnp.asarray(passable))
        np.testing.assert_array_equal(unpacked(bitboard.flood(*boards)), expected >= 0)
        np.testing.assert_array_equal(bitboard.distances(*boards, WIDTH), expected)


def test_a_winding_way():
    passable = np.ones((HEIGHT, WIDTH), bool)
    passable[1, 1:] = passable[3, :-1] = passable[5, 1:] = False
    seeds = np.zeros_like(passable)
    seeds[0, -1] = True
    boards = bitboard.pack(jnp.asarray(seeds)), bitboard.pack(jnp.asarray(passable))
    # 8 to the left, 2 down, 8 to the right, 2 down, 8 to the left, 2 down, 8 to the right
    assert bitboard.distances(*boards, WIDTH)[-1, -1] == 38
    assert bitboard.flood(*boards)[-1] == 2**WIDTH - 1
