"""Searches on boards (`jaxagent.envs.bitboard`): all cells at once, a few operations a row for each step.

Searches run backwards, from where the agent shall be, until they touch it.

Letters: `H` height of a board.
"""

from functools import reduce
from operator import or_
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import symbols
from jaxagent.envs.bitboard import shift
from jaxagent.envs.instructions import DROP, FORWARD, LEFT, RIGHT


class Poses(NamedTuple):
    """A set of poses of the agent: the cells of those that look in each direction, uint32 `[H]`."""

    right: jax.Array
    down: jax.Array
    left: jax.Array
    up: jax.Array

    def __or__(self, others: "Poses") -> "Poses":
        return Poses(*(a | b for a, b in zip(self, others, strict=True)))

    def __and__(self, others: "Poses") -> "Poses":
        return Poses(*(a & b for a, b in zip(self, others, strict=True)))

    def when(self, condition: jax.Array) -> "Poses":
        """These, or none."""
        return Poses(*(jnp.where(condition, board, 0) for board in self))

    def turned(self) -> "Poses":
        """After a quarter turn, to either side; or before it, which is the same."""
        return Poses(*(self[direction - 1] | self[(direction + 1) % 4] for direction in range(4)))

    def any(self) -> jax.Array:
        """Whether there is one, bool."""
        return jnp.any(self.right | self.down | self.left | self.up != 0)

    def meets(self, others: "Poses") -> jax.Array:
        """Whether there is a pose in both, bool."""
        return (self & others).any()


def anyhow(board: jax.Array) -> Poses:
    """All poses on the cells of a board."""
    return Poses(board, board, board, board)


def facing(board: jax.Array) -> Poses:
    """All poses that look at a cell of a board."""
    return Poses(*(shift(board, (direction + 2) % 4) for direction in range(4)))


def pose(cell: jax.Array, direction: jax.Array) -> Poses:
    """The pose on the cell of a board of one, and in a direction, int32."""
    return Poses(*(jnp.where(direction == d, cell, 0) for d in range(4)))


def beside(board: jax.Array) -> jax.Array:
    """Cells next to one of a board, no diagonals."""
    return shift(board, 0) | shift(board, 1) | shift(board, 2) | shift(board, 3)


def reach(start: jax.Array, walkable: jax.Array) -> jax.Array:
    """Cells to which one can walk from `start`, which is one of them."""

    # where worlds are small, this takes less time than `bitboard.flood`, which needs fewer steps, but longer ones
    def spread(boards: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return boards[1], boards[1] | beside(boards[1]) & walkable

    return jax.lax.while_loop(lambda boards: jnp.any(boards[0] != boards[1]), spread, (jnp.zeros_like(start), start))[1]


def nearby(start: jax.Array, walkable: jax.Array, steps: int) -> jax.Array:
    """Cells to which one can walk from `start`, which is one of them, in some steps at most."""
    for _ in range(steps):
        start = start | beside(start) & walkable
    return start


def breach(goal: jax.Array, buried: jax.Array, free: jax.Array, hurdles: tuple[jax.Array, ...], shore: jax.Array) -> jax.Array:
    """What to do something about first, to get from a region to a goal outside.

    Spreads from the goal over free cells, and only where that leads nowhere over hurdles, the lower ones first, until it meets
    the shore: the way found is not the shortest, but one that crosses few hurdles.

    Args:
      goal: cells that shall be reached, none of them on the shore.
      buried: hurdles that are goals themselves.
      free: cells that can be walked on.
      hurdles: cells that can be once something is done about them, from the easiest kind to the hardest.
      shore: cells next to the region.

    Returns:
      Hurdles on the shore, `[H]`; none where there is no way.
    """
    tiers = [free]
    for hurdle in hurdles:
        tiers.append(tiers[-1] | hurdle)

    def spread(boards: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before = boards[1]
        around = beside(before)
        after = before | (around | buried) & tiers[-1]
        for tier in reversed(tiers[:-1]):
            grown = before | (around if tier is free else around | buried) & tier
            after = jnp.where(jnp.any(grown != before), grown, after)
        return before, after

    def continues(boards: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(boards[0] != boards[1]) & ~jnp.any(boards[1] & shore != 0)

    # the first step counts as progress even where the goal is empty
    first = spread((goal, goal))
    return jax.lax.while_loop(continues, spread, first)[1] & shore


class Errand(NamedTuple):
    """Where to go with empty hands, if something must be put down on the way."""

    goals: Poses
    drops: Poses  # where it can be put down, which is in front of the agent


def first_action(
    walkable: jax.Array,
    goals: Poses,
    here: Poses,
    ahead: Poses,
    *,
    limit: jax.Array | int,
    errand: Errand | None = None,
    better_right: jax.Array | bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The first action of a shortest way to one of the goals.

    Args:
      walkable: cells that the agent can walk on.
      goals: poses to reach; where the agent is in one of them, the action means nothing.
      here: the agent's pose.
      ahead: the pose that a step forward leads to.
      limit: steps of the search.
      errand: other goals.
      better_right: whether to turn right, bool, where turns to both sides are equally good; else left.

    Returns:
      LEFT, RIGHT, FORWARD or DROP, int32, FORWARD if several are equally good; and whether a way was found, bool: every way of
      at most `limit + 1` actions is. A drop and the turn after it, away from what was put down, count as one action.
    """
    beside_here = here.turned()
    drops_here = beside_here.when(jnp.bool_(False) if errand is None else here.meets(errand.drops))
    Reached = tuple[jax.Array, Poses, Poses | None]  # steps; poses from which a way leads on, with hands as they are; and empty

    def is_near(reached: Reached) -> jax.Array:
        _, now, later = reached
        near = now.meets(ahead | beside_here)
        return near if later is None else near | later.meets(drops_here)

    def spread(reached: Reached) -> Reached:
        steps, now, later = reached
        before = _one_action_more(now, walkable)
        if errand is None or later is None:
            return steps + 1, before, None
        return steps + 1, before | later.turned() & errand.drops, _one_action_more(later, walkable)

    walkable_poses = anyhow(walkable)
    start = (jnp.int32(0), goals & walkable_poses, None if errand is None else errand.goals & walkable_poses)
    reached = jax.lax.while_loop(lambda reached: ~is_near(reached) & (reached[0] < limit), spread, start)
    _, now, later = reached
    leftwards = now.meets(Poses(*(here[(direction + 1) % 4] for direction in range(4))))
    rightwards = now.meets(Poses(*(here[direction - 1] for direction in range(4))))
    action = jnp.where(leftwards & ~(rightwards & better_right), LEFT, RIGHT)
    if later is not None:
        action = jnp.where(later.meets(drops_here), DROP, action)
    return jnp.where(now.meets(ahead), FORWARD, action), is_near(reached)


def _one_action_more(poses: Poses, walkable: jax.Array) -> Poses:
    """Poses, and those from which one step or turn leads to them."""
    step = Poses(*(shift(board, (direction + 2) % 4) for direction, board in enumerate(poses)))
    return (poses | step | poses.turned()) & anyhow(walkable)


def first_cell(board: jax.Array) -> jax.Array:
    """The first cell of a board, in reading order; none if it has none."""
    rows = jnp.cumsum(board != 0)
    return jnp.where(rows == 1, board & (~board + 1), 0)


def harmless(free: jax.Array, things: jax.Array) -> jax.Array:
    """Cells that something can be put into without harm, as far as the eight cells around each show.

    Args:
      free: cells that can be walked on.
      things: cells that one may want to stand next to.

    Returns:
      Cells around which the free cells hang together, and where each thing next to them has another of these beside it.
    """
    ring, ring_of_things = _ring(free), _ring(things)
    hides = [ring_of_things[i] & ~ring[i - 1] & ~ring[(i + 1) % 8] for i in range(1, 8, 2)]
    once = twice = jnp.zeros_like(free)  # whether a piece of the free cells begins, on a walk around
    for i in range(8):
        begins = ring[i] & ~ring[i - 1]
        once, twice = once | begins, twice | once & begins
    return ~(reduce(or_, hides) | twice)


class Filling(NamedTuple):
    """A cell to put something into."""

    cell: jax.Array  # uint32 [H], none if there is none
    stands: jax.Array  # uint32 [H], the cells next to it from which to do so


def fill(cells: jax.Array, here: jax.Array, region: jax.Array, places: tuple[jax.Array, ...], needed: jax.Array) -> Filling:
    """The nearest cell that can be filled so that a way is left from beside it to each of some places.

    Args:
      cells: that may be filled.
      here: a cell of the region, to be near to.
      region: cells that hang together.
      places: sets of cells of the region; there must be a way to one cell of each, if it has any.
      needed: whether to search at all, bool.
    """

    def look(loop: tuple[jax.Array, jax.Array, Filling]) -> tuple[jax.Array, jax.Array, Filling]:
        near, rest, _ = loop
        cell = first_cell(rest & beside(near))
        left = region & ~cell
        stands = beside(cell)
        for place in places:
            stands = stands & jnp.where(jnp.any(place != 0), reach(place & left, left), left)
        near = jnp.where(jnp.any(cell != 0), near, near | beside(near) & region)
        return near, rest & ~cell, Filling(cell, stands)

    def continues(loop: tuple[jax.Array, jax.Array, Filling]) -> jax.Array:
        return needed & jnp.any(loop[1] != 0) & ~jnp.any(loop[2].stands != 0)

    none = jnp.zeros_like(cells)
    found = jax.lax.while_loop(continues, look, (here, cells & beside(region), Filling(none, none)))[2]
    return Filling(jnp.where(jnp.any(found.stands != 0), found.cell, 0), found.stands)


def _ring(board: jax.Array) -> list[jax.Array]:
    """For each cell, whether its neighbours are in a board: eight boards, in the order of a walk around the cell."""
    above, below = shift(board, symbols.DOWN), shift(board, symbols.UP)
    west, east = symbols.RIGHT, symbols.LEFT  # where a board moves to bring that neighbour here
    return [
        *(shift(above, west), above, shift(above, east), shift(board, east)),
        *(shift(below, east), below, shift(below, west), shift(board, west)),
    ]
