"""Pictures of a run: learning curves, and an episode to watch."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import metrics, render, rollout
from jaxagent.envs import text
from jaxagent.envs.base import Drawable, Environment
from jaxagent.envs.tools.base import ToolEnv
from jaxagent.envs.vector import VectorEnv
from jaxagent.files import disk_errors
from jaxagent.rollout import RolloutState
from jaxagent.rundir import RunDir
from jaxagent.trained import Loaded
from jaxagent.types import Agent, Policy, PyTree

_MAX_FRAMES = 400  # of a GIF


class Frame(NamedTuple):
    """One moment of an episode."""

    env_state: PyTree
    total_reward: float  # up to here


def save_curves(run: RunDir, *, demonstrated: bool = False) -> Path:
    """Draws what the run's log holds, a line a seed, into `curves.png`. See `Trainer.demonstrated`."""
    from matplotlib.figure import Figure

    rows = metrics.read(run.metrics)
    logged = {name: _lines(rows, name) for name in metrics.CURVES if rows and name in rows[0]}
    shown = metrics.worth_drawing(logged)
    figure = Figure(figsize=(10, 2.6 * max(1, -(-len(shown) // 3))), layout="constrained")
    axes = figure.subplots(-(-len(shown) // 3), min(3, len(shown)), squeeze=False).ravel() if shown else ()
    steps = np.array([np.max(row["env_steps"]) for row in rows], np.float64)
    for axis, name in zip(axes, shown, strict=False):
        marker = "o" if np.isfinite(logged[name]).sum(0).max() == 1 else None  # a line of one point is not seen
        first, *_ = axis.plot(steps, logged[name], linewidth=1.0, alpha=0.8, marker=marker)
        if demonstrated and name in metrics.PLAYED:
            first.set_label("demonstrations")
        evaluated = [(step, row["eval"][name]) for step, row in zip(steps, rows, strict=True) if _evaluated(row, name)]
        if evaluated:
            axis.plot(*zip(*evaluated, strict=True), "k.", label="evaluation")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)
        axis.set(title=name.replace("_", " "), xlabel="environment steps")
        axis.grid(alpha=0.3)
    for axis in axes[len(shown) :]:
        axis.remove()
    with disk_errors(run.curves, 0):
        figure.savefig(run.curves, dpi=110)
    return run.curves


def _lines(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """`[rows, seeds]`."""
    return np.array([np.atleast_1d(row[name]) for row in rows], np.float64)


def _evaluated(row: dict[str, Any], name: str) -> bool:
    return row.get("eval", {}).get(name) is not None


def save_episode(loaded: Loaded, path: Path, *, seed: int = 0, fps: float = 6) -> Path | None:
    """Plays one episode and saves it as a GIF, or as a PNG where `path` ends so.

    Grids are drawn above the mission's text, a PNG at their first moment. Tool worlds are the text of their calls, at most
    two a second, a PNG at their last moment, which shows all of them, or the last in a window.

    Returns the path, or None where the environment cannot be drawn.
    """
    env = loaded.env
    if not can_draw(env):
        return None
    frames = play(env, loaded.params, loaded.policy, loaded.agent, jax.random.key(seed))
    still = path.suffix == ".png"
    if isinstance(env, ToolEnv):
        fps, moments = min(fps, 2.0), list(frames)
        texts = list(_transcripts(env, moments))
        pictures, missions = render.render_text(texts[-1:] if still else texts), [""] * len(moments)
    else:
        moments = [next(frames)] if still else list(frames)
        pictures = [draw(env, moment.env_state) for moment in moments]
        missions = [env.mission(moment.env_state) for moment in moments]
    with disk_errors(path, 0):
        if still:
            render.save_png(path, pictures[0], caption=missions[0] or None)
        else:
            steps = (f"step {i}, return {moment.total_reward:.2f}" for i, moment in enumerate(moments))
            captions = [f"{mission}\n{step}".lstrip() for mission, step in zip(missions, steps, strict=True)]
            render.save_gif(path, pictures, fps=fps, captions=captions)
    return path


def can_draw(env: Environment) -> TypeGuard[Drawable | ToolEnv]:
    """Whether an environment shows itself as cells or as text."""
    return isinstance(env, ToolEnv) or all(hasattr(env, method) for method in ("cells", "agent", "seen", "mission"))


def as_text(env: Drawable | ToolEnv, moments: Iterable[Frame]) -> Iterator[str]:
    """Each moment of an episode: the mission and the grid in ASCII, or the latest call and its reply."""
    if isinstance(env, ToolEnv):
        yield from (shown.splitlines()[-1] for shown in _transcripts(env, moments))
        return
    for moment in moments:
        xy, direction = jax.device_get(env.agent(moment.env_state))
        cells = np.asarray(env.cells(moment.env_state))
        yield f"{env.mission(moment.env_state)}\n{render.render_ascii(cells, agent_xy=xy, agent_dir=int(direction))}"


def _transcripts(env: ToolEnv, moments: Iterable[Frame]) -> Iterator[str]:
    """The calls and replies up to each moment of an episode, or what a window shows of them."""
    observations = []
    for moment in moments:
        observations.append(env.observe(moment.env_state))
        yield text.transcript(env, observations) if env.window is None else text.describe(env, observations[-1])


def draw(env: Drawable, env_state: PyTree, *, tile_size: int = 32) -> np.ndarray:
    """A picture of one state, uint8 `[height, width, 3]`, with what the agent sees shaded."""
    xy, direction = jax.device_get(env.agent(env_state))
    cells, seen = np.asarray(env.cells(env_state)), np.asarray(env.seen(env_state))
    return render.render_rgb(cells, agent_xy=xy, agent_dir=int(direction), highlight=seen, tile_size=tile_size)


def play(env: Environment, params: PyTree, policy: Policy, agent: Agent, key: jax.Array) -> Iterator[Frame]:
    """The states of one episode, from the first to the last, at most 400."""
    vector_env = VectorEnv(env, num_envs=1, reset_mode="none")
    start_key, act_key = jax.random.split(key)

    def step(state: RolloutState, key: jax.Array) -> tuple[RolloutState, jax.Array]:
        state, (transition, _) = rollout.step(vector_env, policy, agent, state, params, key)
        return state, transition.reward[0]

    step = jax.jit(step)
    state = rollout.init(vector_env, policy, start_key, params)
    total = 0.0
    for count in range(_MAX_FRAMES):
        yield Frame(jax.tree.map(lambda leaf: leaf[0], state.vector.env_state), total)
        if bool(state.vector.ended[0]):
            return
        state, reward = step(state, jax.random.fold_in(act_key, jnp.int32(count)))
        total += float(reward)
