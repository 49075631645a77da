"""Levels of rooms in a grid, as data: one generator for all of BabyAI and for MiniGrid's levels of this family.

A `RoomLevel` says what a level consists of; `Rooms` draws one of one or several such levels, in one program. All levels go
through the same stages, in the original's order wherever that shapes the distribution: the locked room, doors, things, the
agent, the check, late things, the instruction. What the original draws again and again until it fits is drawn once, uniformly
over what fits; only a level as a whole may still be rejected.

Letters: `H`, `W` size of the world, `R` rooms, `M` walls where doors can be, `D` given doors, `N` things, `T` targets, `K` rows
of the objects: the things, then, where an instruction can be about a door, the walls.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import bitboard, symbols
from jaxagent.envs.grid import Level
from jaxagent.envs.language import ALONE, DOOR, KEY, PUT_NEXT
from jaxagent.envs.layout import Layout, Rows
from jaxagent.envs.rooms import asking, building
from jaxagent.envs.rooms.arrays import NOTHING_INSIDE, Arrays, Shape, stacked
from jaxagent.envs.rooms.asking import Objects, Sentence
from jaxagent.envs.rooms.building import Doors, LockedRoom, Plan, Pose
from jaxagent.envs.rooms.levels import BY_PLACE, COLOURS, FIRST, KINDS, LAST, RoomLevel

Drawn = TypeVar("Drawn", Pose, Sentence)

_FIRST_THING = symbols.symbol(KINDS[0], 0)


class World(NamedTuple):
    """All but the instruction."""

    locked: LockedRoom
    doors: Doors
    exists: jax.Array  # bool [N]
    there: jax.Array  # bool [N], in the grid
    xy: jax.Array  # int32 [N, 2]
    look: jax.Array  # int32 [N]
    agent: Pose
    accepted: jax.Array  # bool


@dataclass(frozen=True)
class Rooms:
    """Draws levels: `rooms(key, width, height)`, or `rooms(key, width, height, variant)` for one of several.

    Smaller levels lie in the upper left corner of the world; the rest is wall.
    """

    levels: tuple[RoomLevel, ...]

    def __call__(self, key: jax.Array, width: int, height: int, variant: jax.Array | int = 0) -> Layout:
        shape = Shape.of(self.levels, height)
        table = stacked(self.levels, shape)
        words = _draw(key, _num_words(table, shape))
        plan = Plan(
            level=jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else jnp.asarray(leaf)[variant], table),
            some=jax.tree.map(lambda leaf: bool(np.any(leaf)), table),
            words=words,
            shared=bitboard.ranks(words["shared"]) if words["shared"].size else jnp.zeros(len(COLOURS), jnp.int32),
        )
        world = self._world(plan, shape)
        objects = self._objects(plan, world)
        sentence = jax.lax.optimization_barrier(_sentence(plan, shape, objects, world))
        puts_next = any(PUT_NEXT in level.verbs for level in self.levels)
        ruling = asking.rule(plan, sentence, objects, world.locked, puts_next=puts_next)
        return self._layout(plan, world, sentence, ruling, objects, width)

    def _world(self, plan: Plan, shape: Shape) -> World:
        place, things = plan.level.place, plan.level.things
        locked = building.lock(plan)
        doors = building.doors(plan, locked)
        rooms, exists = building.rooms(plan, locked)
        spots = building.spots(plan, rooms, exists, doors)
        early, late = (jax.tree.map(lambda leaf, part=part: leaf[part], spots) for part in shape.parts)
        given, added = (building.cells(there, doors.xy, shape.height) for there in (doors.given, doors.added))

        when = plan.level.start.when
        first = building.agent(plan, locked, place.floor, place.walls)
        around = jnp.where(when == FIRST, first.xy, place.start)
        empty, early_xy, early_found = building.put(plan, early, place.floor, around)
        walls = place.walls & ~given & ~jnp.where(when == LAST, added, jnp.uint32(0))
        last = building.agent(plan, locked, empty, walls)
        agent = _select(when == FIRST, first, last)
        passes = building.passes(plan, agent, empty, given | added)
        _, late_xy, late_found = building.put(plan, late, empty, agent.xy)

        xy = jnp.concatenate([early_xy, late_xy])
        there = exists & ~things.inside
        if plan.some.things.beside:
            there = there & ~building.buried(things, xy)
        accepted = doors.connected & early_found & late_found & agent.found & passes
        return World(locked, doors, exists, there, xy, building.looks(plan, exists), agent, accepted)

    def _objects(self, plan: Plan, world: World) -> Objects:
        """The things and, where an instruction can be about a door, the doors."""
        there, xy = world.there, world.xy
        kind, colour = KEY - symbols.kind_of(world.look), 1 + symbols.colour_of(world.look)
        if any(level.names_doors for level in self.levels):
            doors = world.doors
            there, xy = jnp.concatenate([there, doors.there]), jnp.concatenate([xy, doors.xy])
            kind = jnp.concatenate([kind, jnp.full(doors.colour.shape, DOOR)])
            colour = jnp.concatenate([colour, 1 + doors.colour])
        xy = jnp.where(there[:, None], xy, -1)
        by_place = plan.some.grammar.places or plan.words["place"].size
        places = asking.places(plan, world.agent, xy) if by_place else jnp.ones_like(kind)
        # XLA would work them out again for each wording and each description
        return jax.lax.optimization_barrier(Objects(there, xy, kind, colour, places))

    def _layout(
        self, plan: Plan, world: World, sentence: Sentence, ruling: asking.Ruling, objects: Objects, width: int
    ) -> Layout:
        level, some, doors = plan.level, plan.some, world.doors
        held, there, xy = jnp.int32(-1), world.there, objects.xy
        if some.command.at_start or some.command.at_first_action:
            held = jnp.where(level.command.at_start | level.command.at_first_action, sentence.row, held)
        if some.command.at_start:
            taken = level.command.at_start & (jnp.arange(len(xy)) == held)
            there, xy = there & ~taken[: there.size], jnp.where(taken[:, None], -1, xy)

        thing = jnp.where(world.exists, _FIRST_THING + world.look, 0).astype(jnp.uint8)
        closed = jnp.where(level.doorways.open, symbols.DOOR_OPEN, symbols.DOOR_CLOSED)
        door = symbols.symbol(jnp.where(doors.locked, symbols.DOOR_LOCKED, closed), doors.colour).astype(jnp.uint8)
        symbol = jnp.concatenate([thing, jnp.where(doors.there, door, 0)])[: len(xy)]
        contents = None
        if some.things.inside:
            contents = jnp.pad(level.things.contents, (0, len(xy) - thing.size), constant_values=NOTHING_INSIDE)

        floor = bitboard.unpack(level.place.floor | level.place.openings, width)
        grid = jnp.where(floor, jnp.uint8(symbols.EMPTY_CELL), jnp.uint8(symbols.WALL_CELL))
        cells_there, cells = jnp.concatenate([there, doors.there]), jnp.concatenate([world.xy, doors.xy])
        index = jnp.where(cells_there, cells[:, 1] * width + cells[:, 0], grid.size)
        grid = grid.ravel().at[index].set(jnp.concatenate([thing, door]), mode="drop").reshape(grid.shape)
        return Layout(
            grid=grid,
            agent=world.agent.xy,
            direction=world.agent.direction,
            mission=ruling.mission,
            rows=Rows(symbol, xy, contents),
            members=ruling.members,
            strict=level.command.strict,
            held=held.astype(jnp.int8),
            max_steps=self._max_steps(level, sentence),
            accepted=world.accepted & ruling.accepted,
        )

    def _max_steps(self, level: Arrays, sentence: Sentence) -> jax.Array | None:
        if len(self.levels) == 1 and self.levels[0].fixed_steps is not None:
            return None
        fixed = level.limits.fixed
        return jnp.where(fixed > 0, fixed, level.limits.per_place * sentence.num_places)


def level(*levels: RoomLevel) -> Level:
    """A level for the engine, or a mixture of several."""
    return Level(
        generate=Rooms(levels),
        size=(max(level.size[0] for level in levels), max(level.size[1] for level in levels)),
        max_steps=max(level.most_steps for level in levels),
        verbs=frozenset().union(*(level.verbs for level in levels)),
        compound=any(level.clauses > 1 for level in levels),
        starts_holding=any(level.starts_holding for level in levels),
        rejects=any(level.rejects for level in levels),
        variants=len(levels),
    )


def _sentence(plan: Plan, shape: Shape, objects: Objects, world: World) -> Sentence:
    if not shape.targets:
        return asking.grammar(plan, objects, world.locked)
    command = asking.command(plan, shape.targets, objects, world.doors.locked)
    if not plan.some.grammar.used:
        return command
    return _select(plan.level.grammar.used, asking.grammar(plan, objects, world.locked), command)


def _select(condition: jax.Array, one: Drawn, other: Drawn) -> Drawn:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _num_words(table: Arrays, shape: Shape) -> dict[str, int]:
    """How many random words a level is drawn from, for each purpose."""
    doorways, command, rooms = table.doorways, table.command, shape.rooms > 1
    locks, connects, generates = (bool(np.any(leaf)) for leaf in (table.locking.chance, doorways.connect, table.grammar.used))
    sizes = {
        "shared": len(COLOURS) * bool(locks or np.any(doorways.shared) or np.any(table.things.shared)),
        "lock": 3 * locks,
        "slots": shape.walls,
        "given_walls": shape.walls * (shape.doors > 0),
        "given_states": shape.doors,
        "given_colours": shape.doors,
        "connect": shape.walls * connects,
        "connect_colours": shape.walls * connects,
        "spares": bool(np.any(doorways.spares_lock_colour)),
        "looks": shape.things,
        "thing_rooms": shape.things * rooms,
        "spots": shape.things,
        "agent_room": rooms,
        "pose": 1,
        "targets": len(shape.targets),
        "verbs": len(shape.targets) * _several(command.verbs),
        "place": len(shape.targets) * bool(np.any(command.by & BY_PLACE)),
        "order": bool(np.any(command.orders & ~np.uint32(1 << ALONE))),
        "by": bool(np.any(command.num_by > 1)),
        "swap": bool(np.any(command.swaps)),
        "form": 4 * generates,
        "leaves": 4 * generates,
        "descriptions": 8 * generates,
    }
    return sizes


def _several(masks: np.ndarray) -> bool:
    """Whether any of `masks` has more than one bit."""
    return bool(np.any(masks & (masks - 1)))


def _draw(key: jax.Array, sizes: dict[str, int]) -> dict[str, jax.Array]:
    """Uniform uint32 words, `sizes` of them for each purpose."""
    ends = np.cumsum(list(sizes.values()))
    return dict(zip(sizes, jnp.split(jax.random.bits(key, (int(ends[-1]),)), ends[:-1]), strict=True))
