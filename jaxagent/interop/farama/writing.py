"""States of ours, turned into live environments of Farama's `minigrid`."""

import warnings
from typing import Any

import jax
import numpy as np

from jaxagent.envs import language
from jaxagent.envs.grid import GridEnv, GridParams, GridState
from jaxagent.envs.language import VERB
from jaxagent.interop.farama.write_rules import FIELDS, instructions
from jaxagent.interop.farama.write_things import Things


def to_farama(env: GridEnv, params: GridParams, state: GridState, *, seed: int | None = None) -> Any:
    """Farama's environment of the same id in the same state: from here on both show, pay and say the same.

    It never was reset and need not be; `reset` starts another episode of Farama's own. It has all that its `step` and its
    pictures read; what nothing but its generator reads, such as which rooms its doors join, comes with the first `reset`.
    `from_farama` turns it back into an equal state, but for the order of the rows of `objects`, and what no rule looks at.

    Args:
      env: a level that Farama registers.
      params: of the environment.
      state: one state, under way or not.
      seed: of its random numbers, by which obstacles move and `reset` draws levels; None for any.

    Returns:
      A `minigrid.minigrid_env.MiniGridEnv`, not wrapped.

    Raises:
      ImportError: `minigrid` is not installed.
      ValueError: a level that Farama does not have, or not in this size; several states at once; done actions that Farama's
        verifier is not set to, which has them in the whole process or not at all.
    """
    source = counterpart(env)
    env.check_state(state)
    state = jax.device_get(state)
    mission: Any = language.unflatten(env.level.mission) if env.level.mission else state.mission
    leaves, order = np.asarray(mission.leaves), int(mission.order)
    things = Things(env.frame, state)

    source.np_random = np.random.default_rng(seed)
    if hasattr(source, "room_size"):
        _add_rooms(source)
    source.grid = things.grid()
    source.agent_pos, source.agent_dir = things.xy(state.position), int(state.direction)
    source.carrying = things.carried
    source.step_count, source.max_steps = int(state.step_count), int(env.limit(state, params))
    source.mission = language.text(mission)
    if _is_babyai(source):
        source.instrs = instructions(source, leaves, order, things)
    elif int(leaves[0, VERB]) in FIELDS:
        vars(source).update(FIELDS[int(leaves[0, VERB])](leaves[0], things))
    if env.level.obstacles:
        source.obstacles = [things.row(row) for row in range(env.level.obstacles)]
    return source


def counterpart(env: Any) -> Any:
    """Farama's environment of the same id, never reset and not wrapped. Raises as `to_farama`."""
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers its levels)
    except ImportError as error:
        raise ImportError("minigrid is not installed: pip install jaxagent[farama]") from error
    name = env.spec.name if hasattr(env, "spec") else type(env).__name__
    if not isinstance(env, GridEnv) or not name.startswith(("MiniGrid-", "BabyAI-")) or name not in gymnasium.registry:
        raise ValueError(f"env: expected a level of MiniGrid or BabyAI that Farama registers, got {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a newer version of the level: it is this one that is asked for
        source: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    size = (source.width, source.height)
    if size != env.level.size:
        raise ValueError(
            f"env: expected {name} with Farama's {size[0]} x {size[1]} cells, got {' x '.join(map(str, env.level.size))}"
        )
    if _is_babyai(source):
        _check_done_action(env)
    source.see_through_walls = env.level.see_through_walls
    return source


def _is_babyai(source: Any) -> bool:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

    return isinstance(source, RoomGridLevel)


def _check_done_action(env: GridEnv) -> None:
    from minigrid.envs.babyai.core import verifier

    if bool(verifier.use_done_actions) != env.level.done_action:
        raise ValueError(
            f"done_action: expected {not env.level.done_action}, which Farama's verifier is set to in this whole process (by "
            f"the variable BABYAI_DONE_ACTIONS where it starts), got {env.level.done_action}"
        )


def _add_rooms(source: Any) -> None:
    """The rooms of a `RoomGrid`, which its verifiers look up. The grid that they come with is to be replaced."""
    from minigrid.core.roomgrid import RoomGrid

    RoomGrid._gen_grid(source, source.width, source.height)
