"""What our expert does on levels of any id: all that have the same kinds of missions are one compiled program.

Letters: `N` episodes, `T` steps, `K` objects with an identity.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import grid, language, symbols
from jaxagent.envs.instructions import GONE, NOTHING, RULES
from jaxagent.planners.expert import expert
from jaxagent.types import PolicyInput

FRAME = grid.Frame(25, 25)  # of the largest worlds
ROWS = 48  # objects

_BABYAI = frozenset(range(language.GO_TO, language.PUT_NEXT + 1))
_GOALS = frozenset(range(language.REACH_GREEN_GOAL, language.PLAY + 1))


Array = np.ndarray | jax.Array


class Plans(NamedTuple):
    """What the expert does in each episode, and how it ends."""

    actions: Array  # int8 [N, T]; after the end they mean nothing
    lengths: Array  # int32 [N], actions until the end, T if there is none
    success: Array  # bool [N]


def plans(env: grid.GridEnv, states: grid.GridState, num_steps: int, *, view_only: bool = False) -> Plans:
    """Plays episodes to their ends, for which there is no time limit but `num_steps`.

    Args:
      env: any level of MiniGrid or BabyAI.
      states: `[N, ...]`, where to begin.
      num_steps: T.
      view_only: whether the expert knows only what it saw.
    """
    level = env.level
    universal = _universal(level, view_only=view_only)
    enlarged = _enlarged(env.frame, level.mission, states)
    return jax.device_get(played(universal, enlarged, jax.random.key(0), num_steps, view_only))


def stacked(states: Sequence[grid.GridState]) -> grid.GridState:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(list(states)))


def _universal(level: grid.Level, *, view_only: bool) -> grid.GridEnv:
    """The same rules in a world that is large enough for all levels, with all the verbs that go by the same rules."""
    together = level.verbs & RULES.keys() <= _BABYAI
    verbs = level.verbs if not together else _BABYAI if level.verbs & _BABYAI else _GOALS
    changes: dict[str, Any] = {
        "generate": no_generator,
        "size": (FRAME.width, FRAME.height),
        "max_steps": 10**6,
        "mission": None,
        "verbs": verbs,
        "compound": verbs == _BABYAI,
        "starts_holding": verbs == _BABYAI,
        "see_through_walls": level.see_through_walls or not view_only,
        "obstacles": min(level.obstacles, 1),  # they are not led on, but the rules are others if there are any
        "rejects": False,
        "variants": 1,
    }
    return grid.GridEnv("universal", dataclasses.replace(level, **changes))


def no_generator(key: jax.Array, width: int, height: int) -> Any:
    """In the place of a level's own, so that levels that differ in nothing else share a compiled program."""
    raise AssertionError("only states from elsewhere are played")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _enlarged(frame: grid.Frame, constant: tuple[int, ...] | None, states: grid.GridState) -> grid.GridState:
    """States as the universal level has them: walls around, and rows for objects that are nowhere."""

    def moved(index: jax.Array) -> jax.Array:
        return jnp.where(index < 0, index, FRAME.index(*frame.xy(index.astype(jnp.int32)))).astype(index.dtype)

    def rows(column: jax.Array, filler: int) -> jax.Array:
        return jnp.pad(column, (0, ROWS - column.size), constant_values=filler)

    def enlarge(state: grid.GridState) -> grid.GridState:
        space = (0, FRAME.height - frame.height), (0, FRAME.width - frame.width)
        world = jnp.pad(frame.unflatten(state.cells), space, constant_values=symbols.WALL_CELL)
        objects, task = state.objects, state.task
        if objects is None:
            objects = grid.Objects(jnp.zeros(0, jnp.uint8), jnp.zeros(0, jnp.int16), None, jnp.int8(NOTHING))
        contents = jnp.full(objects.symbol.size, NOTHING, jnp.int8) if objects.contents is None else objects.contents
        return grid.GridState(
            cells=FRAME.flatten(world),
            position=moved(state.position),
            direction=state.direction,
            carrying=state.carrying,
            step_count=state.step_count,
            mission=state.mission if constant is None else language.unflatten(constant),
            objects=grid.Objects(
                rows(objects.symbol, 0), rows(moved(objects.position), GONE), rows(contents, NOTHING), objects.held
            ),
            task=task and dataclasses.replace(task, members=rows(task.members, 0), known=rows(moved(task.known), GONE)),
        )

    return jax.vmap(enlarge)(states)


def play(env: grid.GridEnv, states: grid.GridState, key: jax.Array, num_steps: int, view_only: bool) -> Plans:
    """The expert's episodes from some states `[N, ...]`, to their ends or for T steps. Pure."""
    policy, num = expert(env, view_only=view_only), states.position.size
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    Loop = tuple[jax.Array, jax.Array, grid.GridState, jax.Array, jax.Array, jax.Array, jax.Array]

    def act(loop: Loop) -> Loop:
        time, carry, states, over, actions, lengths, success = loop
        inputs = PolicyInput(None, None, None, jnp.full(num, time == 0), states)
        carry, action, _ = policy.act(None, carry, inputs, key)
        keys = jax.random.split(jax.random.fold_in(key, time), num)
        _, after, _, terminated, truncated, info = step(keys, states, action, env.default_params)
        actions = actions.at[time].set(action.astype(jnp.int8))
        success = success | info["success"] & ~over
        return time + 1, carry, after, over | terminated | truncated, actions, lengths + ~over, success

    def continues(loop: Loop) -> jax.Array:
        return (loop[0] < num_steps) & ~jnp.all(loop[3])

    no = jnp.zeros(num, bool)
    start = (jnp.int32(0), policy.init(num), states, no, jnp.zeros((num_steps, num), jnp.int8), jnp.zeros(num, jnp.int32), no)
    *_, actions, lengths, success = jax.lax.while_loop(continues, act, start)
    return Plans(actions.T, lengths, success)


played = jax.jit(play, static_argnums=(0, 3, 4))
