"""The grid engine: one step function for every world of cells, with MiniGrid's rules.

A world is a flat array of one-byte symbols (`symbols.py`), padded with walls so that the agent's view is a gather that needs
no bounds check. Rows share their side padding: the cells right of one row are the cells left of the next. A step reads and
writes one cell, the one in front of the agent. What an instruction is about has an identity besides (`Objects`), and whether
it is fulfilled is judged by `instructions.verify`.

Letters: `W`, `H` width and height of a world, `P` its cells with the padding, `K` objects with an identity.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs import language, symbols, view
from jaxagent.envs.base import Info, StepOutput, check_state, redraw
from jaxagent.envs.instructions import (
    CARRIED,
    DROP,
    FORWARD,
    GONE,
    LEFT,
    NOTHING,
    NUM_ACTIONS,
    PICKUP,
    RIGHT,
    RULES,
    TOGGLE,
    Event,
    Task,
    verify,
)
from jaxagent.envs.instructions import DONE as DONE  # with the other actions
from jaxagent.envs.language import Mission
from jaxagent.envs.layout import Layout, Rows
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, MultiDiscrete, PyTree, check_action

Index = TypeVar("Index", int, jax.Array)


@flax.struct.dataclass
class GridParams:
    """Attributes:
    max_steps: steps until truncation, int32; the level's own bound holds beside it.
    """

    max_steps: ArrayLike


@flax.struct.dataclass
class Objects:
    """What has an identity, one row each: whatever an instruction may be about, boxes that hold something, and what they hold.

    Doors among them never move; whether they are open is written in the cells alone.
    """

    symbol: jax.Array  # uint8 [K]
    position: jax.Array  # int16 [K], flat index of a cell, CARRIED or GONE
    contents: (
        jax.Array | None
    )  # int8 [K], the row of the object inside, or NOTHING; None where no box of the level holds anything
    held: jax.Array  # int8, the row in the agent's hands, or NOTHING


@flax.struct.dataclass
class GridState:
    cells: jax.Array  # uint8 [P]
    position: jax.Array  # int32, flat index of the agent's cell
    direction: jax.Array  # int32, 0 - 3
    carrying: jax.Array  # uint8 symbol, 0 for nothing
    step_count: jax.Array  # int32
    # None where the level has no such thing, or the same in every instance
    mission: Mission | None = None
    max_steps: jax.Array | None = None  # int32
    objects: Objects | None = None
    task: Task | None = None


# Draws a level: `generate(key, width, height)`, or `generate(key, width, height, variant)` for a level of several variants.
# Must be hashable by value (a function, or a frozen dataclass), because it is static under `jax.jit`.
Generator = Callable[..., Layout]


@dataclass(frozen=True)
class Level:
    """What sets one registered level apart from another.

    Attributes:
      generate: draws the level.
      size: `(W, H)`, the outer walls included.
      max_steps: steps until truncation, by default and at most.
      mission: what every instance asks for, flattened as the observation `leaves`; None where instances differ.
      verbs: all verbs that the missions can have.
      compound: whether a mission can have more than one leaf.
      see_through_walls: whether the view has no occlusion.
      num_actions: actions from 0 on that there are; a higher one counts as 0 if there are fewer than seven.
      pickup_toggles: whether the action PICKUP does what TOGGLE does.
      obstacles: how many of the first rows of the objects move about, one cell a step, and end the episode if walked into.
      starts_holding: whether the agent takes an object into its hands before its first action.
      rejects: whether `generate` can draw a layout that is not accepted.
      variants: how many levels `generate` knows; one is drawn for each episode, by `params.weights` `[variants]` if several.
      done_action: whether success must be claimed, by the action DONE right after it.
      names: ids of the variants, of a mixture.
    """

    generate: Generator
    size: tuple[int, int]
    max_steps: int
    mission: tuple[int, ...] | None = None
    verbs: frozenset[int] = frozenset()
    compound: bool = False
    see_through_walls: bool = False
    num_actions: int = NUM_ACTIONS
    pickup_toggles: bool = False
    obstacles: int = 0
    starts_holding: bool = False
    rejects: bool = False
    variants: int = 1
    done_action: bool = False
    names: tuple[str, ...] = ()

    @property
    def can_succeed(self) -> bool:
        """Whether there is anything to succeed at."""
        return self.mission is None or self.mission[0] != language.PLAY


@dataclass(frozen=True)
class Frame:
    """Where the cells of a `W x H` world lie in the flat padded array."""

    width: int
    height: int

    @property
    def stride(self) -> int:
        return self.width + view.PAD

    @property
    def num_cells(self) -> int:
        """P."""
        return (self.height + 2 * view.PAD) * self.stride + view.PAD

    @property
    def steps(self) -> np.ndarray:
        """Flat distance to the next cell in each direction, int32 `[4]`."""
        return (symbols.DIRECTION_XY @ np.array([1, self.stride])).astype(np.int32)

    def index(self, x: Index, y: Index) -> Index:
        return (y + view.PAD) * self.stride + view.PAD + x

    def xy(self, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, x = jnp.divmod(index - view.PAD, self.stride)
        return x, y - view.PAD

    def flatten(self, grid: jax.Array) -> jax.Array:
        """uint8 `[H, W]` to `[P]`."""
        rows = jnp.pad(grid, ((0, 0), (0, view.PAD)), constant_values=symbols.WALL_CELL)
        beyond = view.PAD * self.stride
        return jnp.pad(rows.ravel(), (beyond + view.PAD, beyond), constant_values=symbols.WALL_CELL)

    def unflatten(self, cells: jax.Array) -> jax.Array:
        """uint8 `[P]` to `[H, W]`."""
        padded = cells[view.PAD :].reshape(self.height + 2 * view.PAD, self.stride)
        return padded[view.PAD : view.PAD + self.height, : self.width]

    def state(self, layout: Layout) -> GridState:
        """The state at the start of an episode in `layout`."""
        carrying, objects = (jnp.uint8(0), None) if layout.rows is None else self._objects(layout.rows, layout.held)
        task = None
        if objects is not None and layout.members is not None:
            task = Task.start(layout.members, objects.position, layout.strict)
        return GridState(
            cells=self.flatten(layout.grid),
            position=jnp.asarray(self.index(layout.agent[0], layout.agent[1]), jnp.int32),
            direction=jnp.asarray(layout.direction, jnp.int32),
            carrying=carrying,
            step_count=jnp.int32(0),
            mission=layout.mission,
            max_steps=None if layout.max_steps is None else jnp.asarray(layout.max_steps, jnp.int32),
            objects=objects,
            task=task,
        )

    def _objects(self, rows: Rows, held: jax.Array | int) -> tuple[jax.Array, Objects]:
        """The symbol in the agent's hands and the objects; the row `held` is there unless it still has a cell."""
        x, y = rows.xy.T
        taken = (jnp.arange(x.size) == held) & (x < 0)
        position = jnp.where(taken, CARRIED, jnp.where(x < 0, GONE, self.index(x, y))).astype(jnp.int16)
        objects = Objects(rows.symbol, position, rows.contents, jnp.asarray(held, jnp.int8))
        return jnp.max(jnp.where(taken, rows.symbol, jnp.uint8(0))), objects


def _kinds(*kinds: int) -> Callable[[jax.Array], jax.Array]:
    """A test whether a symbol's kind is one of `kinds`."""
    members = sum(1 << kind for kind in kinds)
    return lambda symbol: (members >> symbols.kind_of(symbol).astype(jnp.int32)) & 1 != 0


_is_walkable = _kinds(symbols.EMPTY, symbols.FLOOR, symbols.DOOR_OPEN, symbols.GOAL, symbols.LAVA)
_is_portable = _kinds(symbols.KEY, symbols.BALL, symbols.BOX)


def _toggled(cell: jax.Array, carrying: jax.Array, contents: jax.Array) -> jax.Array:
    """What the `toggle` action makes of a cell, given the carried symbol and what a box there holds."""
    kind, colour = symbols.kind_of(cell), symbols.colour_of(cell)
    has_key = carrying == symbols.symbol(jnp.uint8(symbols.KEY), colour)
    opens = (kind == symbols.DOOR_CLOSED) | (kind == symbols.DOOR_LOCKED) & has_key
    door = symbols.symbol(
        jnp.where(opens, symbols.DOOR_OPEN, jnp.where(kind == symbols.DOOR_OPEN, symbols.DOOR_CLOSED, kind)), colour
    )
    return jnp.where(kind == symbols.BOX, contents, door).astype(jnp.uint8)


def _handle(
    objects: Objects, front: jax.Array, *, takes: jax.Array, drops: jax.Array, opens: jax.Array
) -> tuple[Objects, jax.Array, jax.Array]:
    """Takes, drops or opens what is at `front`.

    Returns:
      The objects after that, the row in the agent's hands before or after it, and the symbol inside the opened box.
    """
    front = front.astype(objects.position.dtype)
    rows = jnp.arange(objects.position.size, dtype=jnp.int8)
    here = objects.position == front
    row = jnp.max(jnp.where(here, rows, jnp.int8(NOTHING)))
    inside, shown = _contents(objects, row)
    put = jnp.where(drops, objects.held, jnp.where(opens, inside, jnp.int8(NOTHING)))
    position = jnp.where(here & (takes | opens), jnp.where(takes, CARRIED, GONE).astype(front.dtype), objects.position)
    position = jnp.where(rows == put, front, position)
    held = jnp.where(takes, row, jnp.where(drops, jnp.int8(NOTHING), objects.held))
    return dataclasses.replace(objects, position=position, held=held), jnp.maximum(held, objects.held), shown


def _contents(objects: Objects, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The row and the symbol inside the box of a row, which may be NOTHING."""
    if objects.contents is None:
        return jnp.int8(NOTHING), jnp.uint8(symbols.EMPTY_CELL)
    inside = jnp.where(row < 0, jnp.int8(NOTHING), view.take(objects.contents, jnp.maximum(row, 0).astype(jnp.int32)))
    symbol = view.take(objects.symbol, jnp.maximum(inside, 0).astype(jnp.int32))
    return inside, jnp.where(inside < 0, jnp.uint8(symbols.EMPTY_CELL), symbol)


def act(frame: Frame, state: GridState, action: jax.Array) -> tuple[GridState, Event]:
    """Applies one of the seven actions; any other number does nothing, as `DONE` does."""
    steps = jnp.asarray(frame.steps)
    front = state.position + view.take(steps, state.direction)
    cell = view.take(state.cells, front)
    carried = state.carrying != 0
    walks = (action == FORWARD) & _is_walkable(cell)
    takes = (action == PICKUP) & ~carried & _is_portable(cell)
    drops = (action == DROP) & carried & (cell == symbols.EMPTY_CELL)
    toggles = action == TOGGLE

    objects, row, contents = None, jnp.int8(NOTHING), jnp.uint8(symbols.EMPTY_CELL)
    if state.objects is not None:
        opens = toggles & (symbols.kind_of(cell) == symbols.BOX)
        objects, row, contents = _handle(state.objects, front, takes=takes, drops=drops, opens=opens)
    written = jnp.where(toggles, _toggled(cell, state.carrying, contents), cell)
    written = jnp.where(takes, jnp.uint8(symbols.EMPTY_CELL), jnp.where(drops, state.carrying, written))
    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    state = dataclasses.replace(
        state,
        cells=state.cells.at[front].set(written, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True),
        position=jnp.where(walks, front, state.position),
        direction=(state.direction + turn) & 3,
        carrying=jnp.where(takes, cell, jnp.where(drops, jnp.uint8(0), state.carrying)),
        step_count=state.step_count + 1,
        objects=objects,
    )
    event = Event(
        action=action,
        agent=state.position,
        front=state.position + view.take(steps, state.direction),
        entered=jnp.where(walks, symbols.kind_of(cell), jnp.uint8(symbols.UNSEEN)),
        now=written,
        carried=carried,
        carries=state.carrying != 0,
        row=row,
        positions=None if objects is None else objects.position,
        cells=state.cells,
        stride=frame.stride,
    )
    return state, event


def take_up(state: GridState) -> GridState:
    """Puts into the agent's hands what it is said to hold and what still lies on the floor."""
    objects = state.objects
    assert objects is not None
    row = jnp.maximum(objects.held, 0).astype(jnp.int32)
    place = objects.position[row]
    waits = (objects.held >= 0) & (place >= 0)
    return dataclasses.replace(
        state,
        cells=state.cells.at[place].set(jnp.where(waits, jnp.uint8(symbols.EMPTY_CELL), state.cells[place])),
        carrying=jnp.where(waits, objects.symbol[row], state.carrying),
        objects=dataclasses.replace(objects, position=objects.position.at[row].set(jnp.where(waits, CARRIED, place))),
    )


def wander(frame: Frame, key: jax.Array, state: GridState, num: int) -> GridState:
    """Moves each of the first `num` objects to a free cell of the nine around it, if there is one."""
    around = jnp.array([x + y * frame.stride for y in (-1, 0, 1) for x in (-1, 0, 1)])

    def go(state: GridState, given: tuple[jax.Array, jax.Array]) -> tuple[GridState, None]:
        row, key = given
        assert state.objects is not None
        nine = state.objects.position[row] + around
        free = (state.cells[nine] == symbols.EMPTY_CELL) & (nine != state.position)
        there = jnp.where(jnp.any(free), nine[_pick(key, free)], state.objects.position[row])
        return move(state, row, there), None

    return jax.lax.scan(go, state, (jnp.arange(num), jax.random.split(key, num)))[0]


def _pick(key: jax.Array, allowed: jax.Array) -> jax.Array:
    """Draws an index uniformly from those where `allowed`, bool `[N]`; 0 if there is none."""
    rank = jax.random.randint(key, (), 0, jnp.maximum(jnp.sum(allowed), 1))
    return jnp.argmax(jnp.cumsum(allowed) > rank)


def move(state: GridState, row: jax.Array | int, there: jax.Array) -> GridState:
    """Moves an object to a cell that is empty or its own."""
    objects = state.objects
    assert objects is not None
    cells = state.cells.at[objects.position[row]].set(symbols.EMPTY_CELL).at[there].set(objects.symbol[row])
    position = objects.position.at[row].set(there.astype(objects.position.dtype))
    return dataclasses.replace(state, cells=cells, objects=dataclasses.replace(objects, position=position))


def _leaves(mission: Mission, *, compound: bool) -> jax.Array:
    return language.flatten(mission)


def _tokens(mission: Mission, *, compound: bool) -> jax.Array:
    return language.tokens(mission if compound else mission._replace(leaves=mission.leaves[:1]))


class MissionEncoding(NamedTuple):
    """How an observation shows the mission.

    Attributes:
      encode: `encode(mission, compound=...)`, where `compound` says whether it may have more than one leaf.
      space: of the result.
    """

    encode: Callable[..., jax.Array]
    space: MultiDiscrete


MISSIONS: dict[str, MissionEncoding] = {
    "leaves": MissionEncoding(_leaves, language.LEAVES_SPACE),
    "tokens": MissionEncoding(_tokens, language.TOKENS_SPACE),
}


@dataclass(frozen=True)
class GridEnv:
    """A level of the engine. Success, which is reaching a goal or whatever the mission asks for, pays
    `1 - 0.9 * steps / max_steps` and ends the episode; so do failure and lava, for 0, and walking into an obstacle, for -1.

    Observations are a dict: `image` and `mission` as the options say, and `direction` (int32, 0 right, 1 down, 2 left, 3 up).
    Actions: turn left, turn right, forward, pick up, drop, toggle, done.

    Attributes:
      name: registry id.
      level: what to generate.
      obs: how `image` is encoded: `packed` (uint8 `[7, 7]` symbols as `[x, y]`), `symbolic` (uint8 `[7, 7, 3]`, MiniGrid's
        kind, colour and state), `onehot` (uint8 `[7, 7, 20]`), `full` (uint8 `[W, H, 3]`, the whole world) or `rgb` (uint8
        `[56, 56, 3]`, the view in tiles of 8 pixels).
      mission_obs: how `mission` is encoded: `leaves` (uint8 `[33]`: four leaves of eight fields, then their order; see
        `language.Mission`) or `tokens` (uint8 `[72]` of `language.VOCABULARY`, 0 after the end).
    """

    name: str
    level: Level
    obs: str = "packed"
    mission_obs: str = "leaves"

    def validate(self) -> None:
        """Raises `ValueError` where a field has no meaning."""
        for option, given, known in (
            ("obs", self.obs, (*view.ENCODINGS, "full")),
            ("mission", self.mission_obs, tuple(MISSIONS)),
        ):
            if given not in known:
                raise ValueError(f"{option}: expected one of {', '.join(known)}, got {given!r}")
        if self.level.max_steps < 1:
            raise ValueError(f"max_steps: expected at least 1, got {self.level.max_steps}")

    @property
    def frame(self) -> Frame:
        return Frame(*self.level.size)

    @property
    def default_params(self) -> GridParams:
        return GridParams(max_steps=np.int32(self.level.max_steps))

    @property
    def spec(self) -> EnvSpec:
        fields = (("image", self._image_space()), ("direction", Discrete(4)), ("mission", MISSIONS[self.mission_obs].space))
        return EnvSpec(self.name, DictSpace(fields), Discrete(self.level.num_actions), self.level.max_steps)

    def _image_space(self) -> Box:
        if self.obs == "full":
            return Box(0, symbols.AGENT, (*self.level.size, 3), "uint8")
        encoding = view.ENCODINGS[self.obs]
        return Box(0, encoding.high, encoding.shape, "uint8")

    @property
    def rejects(self) -> bool:
        return self.level.rejects

    def propose(self, key: jax.Array, attempt: jax.Array | int, params: PyTree) -> tuple[GridState, jax.Array]:
        """Draws a level, of the same variant at each attempt. Returns its state, and whether it is accepted."""
        variant: tuple[jax.Array, ...] = ()
        if self.level.variants > 1:
            variant_key, key = jax.random.split(key)
            ends = jnp.cumsum(params.weights)  # of each level's share; a search in them is far quicker than a Gumbel a level
            variant = (jnp.sum(ends <= jax.random.uniform(variant_key) * ends[-1]),)
        if self.rejects:
            key = jax.random.fold_in(key, attempt)
        layout = self.level.generate(key, *self.level.size, *variant)
        return self.frame.state(layout), jnp.asarray(layout.accepted)

    def reset(self, key: jax.Array, params: GridParams) -> tuple[PyTree, GridState]:
        state = redraw(self, key, params) if self.rejects else self.propose(key, 0, params)[0]
        return self.observe(state), state

    def step(self, key: jax.Array, state: GridState, action: jax.Array, params: GridParams) -> StepOutput:
        check_action(self.spec.action, action)
        action, level = jnp.asarray(action), self.level
        if level.pickup_toggles:
            action = jnp.where(action == PICKUP, TOGGLE, action)
        if level.num_actions < NUM_ACTIONS:
            action = jnp.where(action >= level.num_actions, 0, action)
        if level.starts_holding:
            state = take_up(state)
        collides = jnp.bool_(False)
        if level.obstacles:
            collides = (action == FORWARD) & self._blocked(state)
            state = wander(self.frame, key, state, level.obstacles)
        task = state.task
        state, event = act(self.frame, state, action)
        success, failure = event.entered == symbols.GOAL, (event.entered == symbols.LAVA) | collides
        if level.verbs & RULES.keys():
            assert task is not None
            verdict = verify(
                level.verbs, task, self._mission(state), event, compound=level.compound, done_action=level.done_action
            )
            state = dataclasses.replace(state, task=verdict.task)
            success, failure = success | verdict.success, failure | verdict.failure
        limit = self.limit(state, params)
        reward = jnp.where(success, 1.0 - 0.9 * state.step_count.astype(jnp.float32) / limit, jnp.where(collides, -1.0, 0.0))
        info: Info = {"success": success} if level.can_succeed else {}
        return self.observe(state), state, reward, success | failure, state.step_count >= limit, info

    def limit(self, state: GridState, params: GridParams) -> jax.Array:
        """Steps until this episode is truncated, int32."""
        own = self.level.max_steps if state.max_steps is None else state.max_steps
        return jnp.minimum(params.max_steps, own)

    def _blocked(self, state: GridState) -> jax.Array:
        """Whether the agent looks at anything but an empty cell or a goal."""
        cell = view.take(state.cells, state.position + view.take(jnp.asarray(self.frame.steps), state.direction))
        return (cell != symbols.EMPTY_CELL) & (cell != symbols.GOAL_CELL)

    def observe(self, state: GridState) -> dict[str, jax.Array]:
        return {"image": self._image(state), "direction": state.direction, "mission": self._mission_shown(state)}

    def _mission_shown(self, state: GridState) -> jax.Array:
        encode = MISSIONS[self.mission_obs].encode
        if state.mission is not None:
            return encode(state.mission, compound=self.level.compound)
        with jax.ensure_compile_time_eval():  # a constant
            return encode(self._mission(state), compound=False)

    def _mission(self, state: GridState) -> Mission:
        if state.mission is not None:
            return state.mission
        assert self.level.mission is not None
        return language.unflatten(self.level.mission)

    def _image(self, state: GridState) -> jax.Array:
        if self.obs == "full":
            return view.world(self.cells(state), *self.frame.xy(state.position), state.direction)
        return view.ENCODINGS[self.obs].encode(self._look(state))

    def _look(self, state: GridState) -> jax.Array:
        indices = view.window(state.position, state.direction, self.frame.stride)
        hands = jnp.where(state.carrying == 0, jnp.uint8(symbols.EMPTY_CELL), state.carrying)
        return view.look(state.cells, indices, hands, see_through_walls=self.level.see_through_walls)

    # for rendering, all of one state

    def check_state(self, state: GridState) -> None:
        """Raises ValueError where this is not one state of this environment."""
        check_state(state, GridState, (self.frame.num_cells,))

    def cells(self, state: GridState) -> jax.Array:
        """The symbols of the world without the agent, uint8 `[W, H]`."""
        self.check_state(state)
        return self.frame.unflatten(state.cells).T

    def agent(self, state: GridState) -> tuple[jax.Array, jax.Array]:
        """Where the agent is, int32 `[2]` as `(x, y)`, and its direction, int32."""
        self.check_state(state)
        return jnp.stack(self.frame.xy(state.position)), state.direction

    def seen(self, state: GridState) -> jax.Array:
        """Which cells of the world the agent sees, bool `[W, H]`."""
        self.check_state(state)
        indices = view.window(state.position, state.direction, self.frame.stride)
        mask = jnp.zeros(state.cells.shape, bool).at[indices].set(self._look(state) != 0)
        return self.frame.unflatten(mask).T

    def situation(self, state: GridState) -> GridState:
        """The state but for its count of steps."""
        return dataclasses.replace(state, step_count=jnp.int32(0))

    def mission(self, state: GridState) -> str:
        """The mission as text; on the host."""
        self.check_state(state)
        return language.text(self._mission(state))
