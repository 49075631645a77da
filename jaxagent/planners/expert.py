"""An expert for every level of MiniGrid and BabyAI: it plans anew at each step, for thousands of levels at once.

What it decides, in this order:

1. What would complete a leaf of the mission: cells to face, and what to do there (`AIMS`, by verb). It depends on what is in
   the agent's hands: to put a ball next to a box, face the ball, and once it is held, a free cell next to the box.
2. If none of these cells can be reached, what stands in the way (`_clear_the_way`): an object is to be picked up, a locked door
   to be opened with the key in hand, or that key to be fetched, for which something else may be in the way. Where there is no
   way, and only what was seen counts, something new is looked for: a cell never seen, or a box to open.
3. The first action of a shortest way to one of the cells, over free cells and closed doors. Where the hands must be empty at
   its end, it leads over a pose in which what is held can be put down without harm.

Every decision follows from the state (and from what was seen), so the advice is good in whatever state somebody else has
brought about. Steps do not undo each other: things are put down where they are in nobody's way, and what is to be brought
somewhere is picked up only once the way there is clear.

Letters: `B` environments, `H` height of the world, `N` aims.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import bitboard, language, symbols, view
from jaxagent.envs.grid import Frame, GridEnv, GridState, Level, take_up
from jaxagent.envs.instructions import DONE, DROP, FORWARD, LEFT, PICKUP, TOGGLE
from jaxagent.ops.compact import over_rows, put_rows, take_rows
from jaxagent.planners import paths
from jaxagent.planners.scene import COLOURS, Leaf, Scene, board, leaves, scene, visible
from jaxagent.types import Policy, PolicyInput

_PATIENCE = 12  # things in the way of things in the way

_FETCHING = frozenset((language.GET, language.GO_GET, language.FETCH, language.GO_FETCH, language.MUST_FETCH))


def expert(env: GridEnv, *, view_only: bool = False) -> Policy:
    """The expert for the levels of an environment. It needs no agent: None will do.

    Args:
      env: any environment of the grid engine.
      view_only: whether it acts only on cells that were in the agent's view in the course of the episode. If not, it knows the
        whole world, and what is in the boxes.

    Raises:
      ValueError: another kind of environment.
    """
    if not isinstance(env, GridEnv):
        name = env.spec.name if hasattr(env, "spec") else f"a {type(env).__name__}"
        raise ValueError(f"env: expected a level of MiniGrid or BabyAI, got {name}")
    planner = _Planner(env, view_only)

    def init(num_rows: int) -> jax.Array:
        return jnp.zeros((num_rows, env.frame.height if view_only else 0), jnp.uint32)

    def act(
        agent: None, carry: jax.Array, inputs: PolicyInput, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        seen, state = jax.vmap(planner.look)(carry, inputs.is_first, inputs.env_state)
        action, found = jax.vmap(planner.hurry)(seen, state)

        # most rows need no more; a plan costs many times that
        def plan_rows(rows: jax.Array, action: jax.Array) -> jax.Array:
            return put_rows(action, rows, jax.vmap(planner.plan)(*take_rows((seen, state), rows)))

        return seen, over_rows(~found, plan_rows, action, size=max(1, action.size // _CHUNKS)), {}

    return Policy(init, act, privileged=True)


_CHUNKS = 16  # parts of a batch, planned for one after the other
_NEAR = 6  # steps within which to look around before opening a door


# what to do -------------------------------------------------------------------------------------------------------------------


class Land(NamedTuple):
    """Cells by what they mean to the agent. Boards, uint32 `[H]`."""

    floor: jax.Array  # where something can be put down
    free: jax.Array  # where it can go as it is
    walkable: jax.Array  # where it can go if it opens doors that are not locked
    movable: jax.Array  # objects that it may pick up
    toggled: jax.Array  # what it can get out of the way by TOGGLE: locked doors for the key in its hands, boxes not to be moved
    locked: jax.Array  # other locked doors
    reach: jax.Array  # where it can go from where it is
    shore: jax.Array  # what it can go and face


class Situation(NamedTuple):
    level: Level
    view_only: bool
    hasty: bool  # whether to leave out what takes long to find out
    scene: Scene
    land: Land
    first: jax.Array  # uint32 [H], where the objects are that the mission is about
    second: jax.Array  # uint32 [H], and those to put something next to
    keep: jax.Array  # uint32 [H], where they are to be put

    @property
    def idle(self) -> jax.Array | int:
        """An action that changes nothing."""
        # with done actions, DONE is a claim
        return jnp.where(self.scene.hands_full, PICKUP, DROP) if self.level.done_action else DONE

    def can_face(self, cells: jax.Array) -> jax.Array:
        return jnp.any(cells & self.land.shore != 0)

    def put_down(self, targets: jax.Array | int = 0, *, needed: jax.Array) -> "Putting":
        """Where to put something down, on the way to targets. `needed`: whether to search for it where there is little room."""
        access = self._access(targets)
        room, poses = self.room(access, needed=needed)
        narrow, narrow_poses = self._narrow(self.land.floor, (access,), needed & ~_any(room))
        cells = _best(self.can_face, room, narrow, self.land.floor & ~self.keep, self.land.floor)
        options = zip(poses, narrow_poses, paths.facing(cells), strict=True)
        poses = paths.Poses(*(jnp.where(_any(room), a, jnp.where(_any(narrow), b, c)) for a, b, c in options))
        return Putting(cells, poses, _any(room))

    def room(self, access: jax.Array, *, needed: jax.Array) -> tuple[jax.Array, paths.Poses]:
        """Where something can be put down so that it does no harm, and one can go on to some cells; and in which poses."""
        land, floor = self.land, self.land.floor & ~self.keep
        empty = self.scene.kinds(symbols.EMPTY, symbols.FLOOR, symbols.DOOR_OPEN, symbols.WALL)
        nearby = paths.harmless(land.free, ~empty & ~land.free) & floor
        ample = self.can_face(nearby)
        # in narrow places, what looks like a passage from nearby may not be the only one
        cell, poses = self._narrow(floor, (access, self._access(self.keep)), needed & ~ample)
        return jnp.where(ample, nearby, cell), paths.Poses(
            *(jnp.where(ample, *boards) for boards in zip(paths.facing(nearby), poses, strict=True))
        )

    def _narrow(self, floor: jax.Array, places: tuple[jax.Array, ...], needed: jax.Array) -> tuple[jax.Array, paths.Poses]:
        """The nearest cell of some that can be filled and leaves a way to the places; and the poses in which to do so."""
        found = paths.fill(floor, self.scene.here, self.land.reach, places, needed)
        return found.cell, paths.facing(found.cell) & paths.anyhow(found.stands)

    def _access(self, cells: jax.Array | int) -> jax.Array:
        """The cells from which some others can be faced."""
        reach = self.land.reach
        return paths.beside(jnp.broadcast_to(jnp.uint32(cells), reach.shape)) & reach

    def new_ground(self) -> jax.Array:
        """Cells next to some that are free and out of reach, perhaps behind a closed door."""
        free = self.land.free & ~self.land.reach
        return paths.beside(free | self.land.walkable & ~self.land.reach & paths.beside(free))

    def without(self, cell: jax.Array) -> "Situation":
        """If what is on a cell were gone; but nothing else should be put there."""
        land = self.land
        free, walkable = land.free | cell, land.walkable | cell
        reach = paths.reach(land.reach | cell, walkable)
        land = land._replace(floor=land.floor & ~cell, free=free, walkable=walkable, reach=reach, shore=paths.beside(reach))
        return self._replace(land=land)


class Putting(NamedTuple):
    """Where to put something down."""

    cells: jax.Array  # uint32 [H], where there is room for it, or the next best
    poses: paths.Poses  # in which to do so
    harmless: jax.Array  # bool, whether there is room


def _any(board: jax.Array) -> jax.Array:
    return jnp.any(board != 0)


def _best(good_for: Callable[[jax.Array], jax.Array], *cells: jax.Array) -> jax.Array:
    """The first cells that are good for something; the last if none are."""
    return reduce(lambda worse, better: jnp.where(good_for(better), better, worse), reversed(cells))


class Aim(NamedTuple):
    """Something to do."""

    cells: jax.Array  # uint32 [H], to face one of these
    action: jax.Array | int  # int32, and then do this
    buried: jax.Array | int = 0  # uint32 [H], cells that would do as well if they were not locked or occupied


def _go_to(now: Situation, leaf: Leaf) -> Aim:
    lost = leaf.holds & ~_any(leaf.first)  # it is known nowhere, but it will be where it is put down
    return Aim(jnp.where(lost, now.land.floor, leaf.first), jnp.where(lost, DROP, now.idle))


def _open(now: Situation, leaf: Leaf) -> Aim:
    return Aim(leaf.first & ~now.land.locked, TOGGLE, leaf.first & now.land.locked)


def _pick_up(now: Situation, leaf: Leaf) -> Aim:
    return Aim(jnp.where(leaf.holds, now.land.floor, leaf.first), jnp.where(leaf.holds, DROP, PICKUP))


def _put_next(now: Situation, leaf: Leaf) -> Aim:
    around = paths.beside(leaf.second)
    cells, action = around & now.land.floor, jnp.where(leaf.verified, DROP, now.idle)
    lost = ~_any(leaf.second)
    if now.view_only:  # look for where to bring it
        cells, action = jnp.where(lost, now.scene.unseen, cells), jnp.where(lost, FORWARD, action)
    lays_off = lost & leaf.holds_second
    cells, action = (
        jnp.where(lays_off, 0 if now.hasty else now.put_down(leaf.first, needed=lays_off).cells, cells),
        jnp.where(lays_off, DROP, action),
    )
    fetches = now.can_face(cells) & ~leaf.holds & ~lays_off
    buried = jnp.where(fetches, 0, around & now.land.movable)
    return Aim(jnp.where(fetches, leaf.first, cells), jnp.where(fetches, PICKUP, action), buried)


def _put_near(now: Situation, leaf: Leaf) -> Aim:
    row = leaf.second | leaf.second << 1 | leaf.second >> 1
    around = row | bitboard.shift(row, symbols.DOWN) | bitboard.shift(row, symbols.UP)
    return Aim(jnp.where(leaf.holds, around & now.land.floor, leaf.first), jnp.where(leaf.holds, DROP, PICKUP))


def _fetch(now: Situation, leaf: Leaf) -> Aim:
    return Aim(leaf.first, PICKUP)


def _stop_next_to(now: Situation, leaf: Leaf) -> Aim:
    return Aim(leaf.first, DONE)


def _open_red_then_blue(now: Situation, leaf: Leaf) -> Aim:
    any_open = jnp.any(now.scene.kinds(symbols.DOOR_OPEN) & (leaf.first | leaf.second) != 0)
    return Aim(jnp.where(any_open, leaf.second, leaf.first), TOGGLE)  # a blue door that is open too early must be closed


def _find_match(now: Situation, leaf: Leaf) -> Aim:
    return Aim(leaf.first, FORWARD)


def _reach_goal(now: Situation, leaf: Leaf) -> Aim:
    return Aim(now.scene.kinds(symbols.GOAL), FORWARD)


AIMS: Mapping[int, Callable[[Situation, Leaf], Aim]] = {
    language.GO_TO: _go_to,
    language.OPEN: _open,
    language.PICK_UP: _pick_up,
    language.PUT_NEXT: _put_next,
    language.PUT_NEAR: _put_near,
    language.STOP_NEXT_TO: _stop_next_to,
    language.OPEN_RED_THEN_BLUE: _open_red_then_blue,
    language.FIND_MATCH: _find_match,
    language.REACH_GREEN_GOAL: _reach_goal,
    language.AVOID_LAVA: _reach_goal,
    language.FIND_OPENING: _reach_goal,
    language.REACH_GOAL: _reach_goal,
    language.USE_KEY: _reach_goal,
    language.TRAVERSE_ROOMS: _reach_goal,
    language.UNLOCK_ROOM: _reach_goal,
} | dict.fromkeys(_FETCHING, _fetch)


class Aims(NamedTuple):
    """Several aims, any of which will do."""

    cells: jax.Array  # uint32 [N, H]
    action: jax.Array  # int32 [N]
    buried: jax.Array  # uint32 [H]
    explores: jax.Array  # bool, whether to look around where no door is to be opened

    @property
    def all_cells(self) -> jax.Array:
        return jax.lax.reduce_or(self.cells, axes=(0,))


# how to do it -----------------------------------------------------------------------------------------------------------------


class _Detour(NamedTuple):
    """The loop of `_clear_the_way`."""

    rounds: jax.Array  # int32
    aims: Aims
    locked: jax.Array  # uint32 [H], locked doors whose keys are known of and not being fetched yet
    resort: jax.Array  # int32, how often there was no way
    clears: jax.Array  # bool, whether the aim is to take something out of the way


class _Keys(NamedTuple):
    """Where there are keys of each colour, as far as is known."""

    boxes: jax.Array  # uint32 [6, H], boxes that hold one
    known: jax.Array  # bool [6], whether there is one, perhaps in the box in the agent's hands


@dataclass(frozen=True)
class _Planner:
    env: GridEnv
    view_only: bool

    @property
    def level(self) -> Level:
        return self.env.level

    @property
    def frame(self) -> Frame:
        return self.env.frame

    def look(self, seen: jax.Array, is_first: jax.Array, state: GridState) -> tuple[jax.Array, GridState]:
        """The cells seen so far, uint32 `[H]`, and the state in which the agent acts."""
        if self.view_only:
            now_seen = visible(self.frame, state, see_through_walls=self.level.see_through_walls)
            seen = jnp.where(is_first, 0, seen) | now_seen
        return seen, take_up(state) if self.level.starts_holding else state

    def hurry(self, seen: jax.Array, state: GridState) -> tuple[jax.Array, jax.Array]:
        """The action, int32, where it is easy to find: the way is not long, and nothing is to be moved or put down before.

        Returns:
          What `plan` gives, and whether it was found.
        """
        now, todo = self._situation(seen, state, hasty=True)
        aims = self._aims(now, todo)
        must_drop = now.scene.hands_full & (aims.action == PICKUP)
        action, found = self._follow(now, aims, ~must_drop, limit=self.frame.width + self.frame.height)
        return self._claimed(action, todo, state), found

    def plan(self, seen: jax.Array, state: GridState) -> jax.Array:
        """The action, int32."""
        now, todo = self._situation(seen, state, hasty=False)
        aims = self._clear_the_way(now, self._aims(now, todo), state)
        reachable = jnp.stack([now.can_face(cells) for cells in aims.cells])
        must_drop = now.scene.hands_full & (aims.action == PICKUP)
        at_once = reachable & ~must_drop
        later = reachable & ~jnp.any(at_once)
        targets = jax.lax.reduce_or(jnp.where(later[:, None], aims.cells, 0), axes=(0,))
        drops = now.put_down(targets, needed=jnp.any(later & must_drop))
        if self.view_only:  # look for room first
            looks = jnp.any(later & must_drop) & ~drops.harmless & now.can_face(now.scene.unseen)
            aims = aims._replace(
                cells=jnp.where(looks, now.scene.unseen, aims.cells), action=jnp.where(looks, FORWARD, aims.action)
            )
            at_once, later = at_once | looks, later & ~looks
        errand = paths.Errand(self._poses(aims, later), drops.poses)
        action, found = self._follow(now, aims, at_once, limit=4 * self.frame.width * self.frame.height, errand=errand)
        wait = DONE if self.level.num_actions > DONE else LEFT
        return self._claimed(jnp.where(found, action, wait), todo, state)

    def _situation(self, seen: jax.Array, state: GridState, *, hasty: bool) -> tuple[Situation, list[Leaf]]:
        """What there is, and what is to be done."""
        known = scene(self.frame, state, seen if self.view_only else None)
        todo = leaves(self.frame, self.level, state, known.known)
        first, second = reduce(or_, [leaf.first for leaf in todo]), reduce(or_, [leaf.second for leaf in todo])
        land = self._land(known, todo, first | second)
        if not hasty or language.PUT_NEXT in self.level.verbs:
            reach = paths.reach(known.here, land.walkable)
            land = land._replace(reach=reach, shore=paths.beside(reach))
        keep = reduce(or_, [jnp.where(leaf.verb == language.PUT_NEXT, self._put_cells(known, leaf), 0) for leaf in todo])
        return Situation(self.level, self.view_only, hasty, known, land, first, second, keep), todo

    def _put_cells(self, known: Scene, leaf: Leaf) -> jax.Array:
        """Next to what something is to be put; if that was not seen, it may be wherever nothing was."""
        around = paths.beside(leaf.second) & known.kinds(symbols.EMPTY)
        return jnp.where(_any(leaf.second), around, known.unseen) if self.view_only else around

    def _land(self, known: Scene, todo: list[Leaf], wanted: jax.Array) -> Land:
        """Without reach and shore."""
        verbs, none = self.level.verbs, jnp.zeros_like(known.here)
        free = known.kinds(symbols.EMPTY, symbols.FLOOR, symbols.DOOR_OPEN) | known.here
        closed, locked = known.kinds(symbols.DOOR_CLOSED), known.kinds(symbols.DOOR_LOCKED)
        movable = known.kinds(symbols.KEY, symbols.BALL, symbols.BOX)
        has_key = symbols.kind_of(known.carrying) == symbols.KEY
        fits = has_key & (symbols.colour_of(known.carrying) == jnp.arange(len(COLOURS)))
        unlockable = locked & known.with_colours(fits)
        # what would end the episode in failure
        fixed = jnp.bool_(bool(verbs & {*_FETCHING, language.PUT_NEAR, language.STOP_NEXT_TO} or self.level.obstacles))
        if verbs & {language.OPEN, language.PICK_UP, language.PUT_NEXT}:
            closed = jnp.where(reduce(or_, [leaf.strict & (leaf.verb == language.OPEN) for leaf in todo]), 0, closed)
            fixed = reduce(or_, [leaf.strict & (leaf.verb != language.OPEN) for leaf in todo])
        if language.STOP_NEXT_TO in verbs:
            closed = none
        if verbs & {language.OPEN_RED_THEN_BLUE, language.FIND_MATCH}:  # the blue door; the object that does not match
            closed, free = closed & ~todo[0].second, free & ~todo[0].second
        # a box that must not be picked up can still be made to vanish
        boxes = none if language.STOP_NEXT_TO in verbs else known.kinds(symbols.BOX) & ~wanted
        return Land(
            floor=known.kinds(symbols.EMPTY),
            free=free,
            walkable=free | closed,
            movable=jnp.where(fixed, 0, movable),
            toggled=unlockable | jnp.where(fixed, boxes, 0),
            locked=locked & ~unlockable,
            reach=none,
            shore=none,
        )

    def _aims(self, now: Situation, todo: list[Leaf]) -> Aims:
        """One a leaf, for what would complete it."""
        aims = [self._aim(now, leaf) for leaf in todo]
        cells = jnp.stack([aim.cells for aim in aims])
        buried = reduce(or_, [aim.buried for aim in aims])
        action = jnp.stack([jnp.asarray(aim.action, jnp.int32) for aim in aims])
        explores = jnp.bool_(False)
        if self.view_only:
            unseen = now.scene.unseen
            clueless = ~jnp.any(cells | buried != 0)  # nothing that the mission is about was seen yet
            # first what can be seen without opening doors; in haste nothing else
            inside = unseen if now.hasty else unseen & paths.beside(paths.nearby(now.scene.here, now.land.free, _NEAR))
            explores = clueless & _any(inside)
            cells = jnp.where(clueless, jnp.where(explores, inside, unseen), cells)
            action = jnp.where(clueless, FORWARD, action)
        return Aims(cells, action, jnp.asarray(buried), explores)

    def _aim(self, now: Situation, leaf: Leaf) -> Aim:
        none = jnp.zeros_like(leaf.first)
        aim = Aim(none, now.idle, none)
        for verb in sorted(self.level.verbs & AIMS.keys()):
            aim = jax.tree.map(
                lambda mine, other, here=leaf.verb == verb: jnp.where(here, mine, other), AIMS[verb](now, leaf), aim
            )
        return aim

    def _clear_the_way(self, now: Situation, aims: Aims, state: GridState) -> Aims:
        """The aims, two of them; or if none can be reached, what must be done before."""
        known, land, none = now.scene, now.land, jnp.zeros_like(now.scene.here)
        keys = self._keys(known, state)
        locked = land.locked & known.with_colours(keys.known)
        resorts, new_ground = self._resorts(now, state), now.new_ground()

        def step_back(loop: _Detour) -> _Detour:
            hurdles = (land.movable | land.toggled, loop.locked)
            met = paths.breach(loop.aims.all_cells, loop.aims.buried, land.walkable, hurdles, land.shore)
            opens, moves = met & land.toggled, met & land.movable
            # best what opens new ground and can stay elsewhere
            moves = _best(_any, moves & new_ground & ~now.second, moves & ~now.second, moves)
            at_once = jnp.where(_any(opens), opens, moves)
            # else a locked door is in the way: get its key
            colours = known.colours_of(met & land.locked) & ~_any(at_once)
            alike = known.with_colours(colours)
            boxes = jax.lax.reduce_or(jnp.where(colours[:, None], keys.boxes, 0), axes=(0,))
            cells = jnp.stack([at_once | known.kinds(symbols.KEY) & alike, boxes])
            action = jnp.stack([jnp.where(_any(opens), TOGGLE, PICKUP), TOGGLE])
            # or there is no way at all
            stuck = ~_any(met)
            resort = jnp.minimum(loop.resort, resorts.action.size - 1)
            cells = jnp.where(stuck, jnp.stack([resorts.cells[resort], none]), cells)
            action = jnp.where(stuck, resorts.action[resort], action)
            gives_up = stuck & (loop.resort >= resorts.action.size)
            return _Detour(
                rounds=jnp.where(gives_up, _PATIENCE, loop.rounds + 1),
                aims=Aims(cells, action, none, jnp.bool_(False)),
                locked=jnp.where(stuck, locked, loop.locked & ~alike),
                resort=loop.resort + stuck,
                clears=~_any(opens) & _any(moves),
            )

        def continues(loop: _Detour) -> jax.Array:
            return ~now.can_face(loop.aims.all_cells) & (loop.rounds < _PATIENCE)

        if aims.action.size == 1:
            aims = Aims(jnp.stack([aims.cells[0], none]), jnp.append(aims.action, TOGGLE), aims.buried, aims.explores)
        start = _Detour(jnp.int32(0), aims, locked, jnp.int32(0), jnp.bool_(False))
        end = jax.lax.while_loop(continues, step_back, start)
        return self._with_room(now, end)

    def _resorts(self, now: Situation, state: GridState) -> Aims:
        """What to try, one after the other, where no way is known; actions that need no empty hands."""
        drop = jnp.where(now.scene.hands_full, now.put_down(needed=jnp.bool_(False)).cells, 0)
        if not self.view_only:
            return Aims(drop[None], jnp.array([DROP]), drop, jnp.bool_(False))
        cells = jnp.stack([now.scene.unseen, self._boxes_to_open(now.scene, state), drop])
        return Aims(cells, jnp.array([FORWARD, TOGGLE, DROP]), drop, jnp.bool_(False))

    def _with_room(self, now: Situation, detour: _Detour) -> Aims:
        """The aims that a detour ends with; but where there is no room to put down what it clears away, first make some."""
        after = now.without(paths.first_cell(detour.aims.cells[0]))
        clears = detour.clears & ~now.scene.hands_full
        room, _ = after.room(after._access(now.first), needed=clears)
        opening = now.land.movable & now.land.shore & now.new_ground()
        cramped = ~_any(room) & ~(after.can_face(now.scene.unseen) if self.view_only else False)
        opening = jnp.where(clears & cramped, _best(_any, opening & ~now.second, opening), 0)
        cells = jnp.where(_any(opening), jnp.stack([opening, jnp.zeros_like(opening)]), detour.aims.cells)
        return detour.aims._replace(cells=cells)

    def _keys(self, known: Scene, state: GridState) -> _Keys:
        colours, objects = known.colours_of(known.kinds(symbols.KEY)), state.objects
        if self.view_only or objects is None or objects.contents is None:
            return _Keys(jnp.zeros((colours.size, known.here.size), jnp.uint32), colours)
        inside = objects.symbol[jnp.maximum(objects.contents, 0).astype(jnp.int32)]
        holds = [(objects.contents >= 0) & (inside == symbols.symbol(symbols.KEY, colour)) for colour in COLOURS]
        boxes = jnp.stack([board(self.frame, objects.position, mask) for mask in holds])
        held = jnp.arange(inside.size) == objects.held
        return _Keys(boxes, colours | jnp.any(boxes != 0, axis=1) | jnp.stack([jnp.any(held & mask) for mask in holds]))

    def _boxes_to_open(self, known: Scene, state: GridState) -> jax.Array:
        """Where a key may be when all else has been seen: in boxes, best in those that no instruction is about."""
        boxes = known.kinds(symbols.BOX)
        if state.task is None or state.objects is None:
            return boxes
        others = boxes & ~board(self.frame, state.objects.position, state.task.members != 0)
        return jnp.where(_any(others), others, boxes)

    def _poses(self, aims: Aims, which: jax.Array) -> paths.Poses:
        """Where to do what the aims of a mask say, bool `[N]`."""

        def cells(which: jax.Array) -> jax.Array:
            return jax.lax.reduce_or(jnp.where(which[:, None], aims.cells, 0), axes=(0,))

        if language.STOP_NEXT_TO not in self.level.verbs:
            return paths.facing(cells(which))
        stops = aims.action == DONE
        return paths.facing(cells(which & ~stops)) | paths.anyhow(paths.beside(cells(which & stops)))

    def _follow(
        self, now: Situation, aims: Aims, which: jax.Array, *, limit: jax.Array | int, errand: paths.Errand | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The next action to fulfil one of the aims of a mask, or the errand; and whether it was found."""
        known, land = now.scene, now.land
        here, ahead = paths.pose(known.here, known.direction), paths.pose(known.ahead, known.direction)
        poses = [self._poses(aims, which & (jnp.arange(which.size) == i)) for i in range(which.size)]
        goals = reduce(or_, poses)
        hopeless = ~(goals if errand is None else goals | errand.goals).any()
        goals = goals | here.when(hopeless)  # so that the search ends at once
        walkable = jnp.where(aims.explores, land.free, land.walkable)
        limit = jnp.where(aims.explores, _NEAR, limit) if now.hasty else limit
        action, found = paths.first_action(
            walkable, goals, here, ahead, limit=limit, errand=errand, better_right=self._better_right(known)
        )
        opens = jnp.any(known.ahead & known.kinds(symbols.DOOR_CLOSED) != 0)
        action = jnp.where((action == FORWARD) & opens, TOGGLE, action)
        there = [here.meets(goal) for goal in poses]
        for i in reversed(range(which.size)):
            action = jnp.where(there[i], aims.action[i], action)
        return action, reduce(or_, there) | found & ~hopeless

    def _better_right(self, known: Scene) -> jax.Array | bool:
        """Whether it would face a wall after a turn to the left, but not after one to the right, where more is to be seen."""
        if not self.view_only:
            return False
        walls = known.kinds(symbols.WALL)
        faces = jnp.stack([_any(bitboard.shift(known.here, direction) & walls) for direction in range(4)])
        return view.take(faces, (known.direction + 3) % 4) & ~view.take(faces, (known.direction + 1) % 4)

    def _claimed(self, action: jax.Array, todo: list[Leaf], state: GridState) -> jax.Array:
        """The action, or with done actions the claim that a leaf is fulfilled."""
        if not self.level.done_action or state.task is None:
            return action
        return jnp.where(state.task.matched != 0, DONE, action)
