"""Episodes in environments of Farama's `minigrid`, seen and acted in as in ours.

Letters: `N` environments side by side, one episode each.
"""

import contextlib
import functools
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import babyai, language, symbols, view
from jaxagent.envs.grid import MISSIONS, GridEnv
from jaxagent.envs.language import Mission
from jaxagent.envs.rooms import Rooms
from jaxagent.interop.farama.writing import counterpart
from jaxagent.types import PyTree

_STREAM = 0x6D67  # keeps the seeds apart from whatever else is drawn by the same number


class Episodes:
    """Farama's environments of the same id as `env`, or as one of the levels that it mixes, each reset by a seed of its own.

    Attributes:
      mission: as `env` encodes it, uint8 `[N, ...]`.
      ended: bool `[N]`; an environment that has ended is not stepped any more.
    """

    def __init__(self, env: GridEnv, params: PyTree, *, num_episodes: int, seed: int, level: str | None = None) -> None:
        """`level` is one of a mixture's. Raises as `babyai.member` and `writing.counterpart`."""
        self._env = env
        played: Any = babyai.member(env, level)
        self._sources = [counterpart(played) for _ in range(num_episodes)]
        seeds = np.random.SeedSequence([_STREAM, seed]).generate_state(num_episodes)
        with contextlib.redirect_stdout(io.StringIO()):  # some levels print how often they drew anew
            self._seen = [source.reset(seed=int(seed))[0] for source, seed in zip(self._sources, seeds, strict=True)]
        for source in self._sources:
            source.max_steps = _limit(played, params, source)
        missions = [_mission(played, seen["mission"]) for seen in self._seen]
        encode = functools.partial(MISSIONS[env.mission_obs].encode, compound=env.level.compound)
        self.mission = jax.vmap(encode)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *missions))
        self.ended = np.zeros(num_episodes, bool)

    def observation(self) -> dict[str, jax.Array]:
        """What `env.observe` would show, `[N, ...]`."""
        direction = jnp.array([seen["direction"] for seen in self._seen], jnp.int32)
        return {"image": self._image(), "direction": direction, "mission": self.mission}

    def _image(self) -> jax.Array:
        if self._env.obs == "full":
            return jnp.asarray(np.stack([_world(source, self._env.level.size) for source in self._sources]))
        return _encode(self._env.obs, _packed(np.stack([seen["image"] for seen in self._seen])))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Steps what has not ended.

        Returns:
          The rewards, float32 `[N]`, and whether the episodes succeeded by this step, bool `[N]`.
        """
        reward, success = np.zeros(self.ended.size, np.float32), np.zeros(self.ended.size, bool)
        for i in np.flatnonzero(~self.ended):
            self._seen[i], paid, terminated, truncated, _ = self._sources[i].step(int(actions[i]))
            reward[i], success[i], self.ended[i] = paid, terminated and paid > 0, terminated or truncated
        return reward, success


def _limit(env: GridEnv, params: PyTree, source: Any) -> int:
    """Steps until the episode is truncated, after `reset`, which sets Farama's own limit where it differs by instance."""
    generate = env.level.generate
    by_instance = isinstance(generate, Rooms) and generate.levels[0].fixed_steps is None
    own = min(source.max_steps, env.level.max_steps) if by_instance else env.level.max_steps
    return min(own, int(np.asarray(params.max_steps)))


def _mission(env: GridEnv, text: str) -> Mission:
    constant = env.level.mission
    return language.parse(text, env.level.verbs) if constant is None else language.unflatten(constant)


def _packed(images: np.ndarray) -> np.ndarray:
    """Symbols, uint8 `[...]`, of MiniGrid's encoding, uint8 `[..., 3]`."""
    kind, colour, state = np.moveaxis(images, -1, 0)
    return symbols.symbol(np.where(state > 0, symbols.DOOR_CLOSED - 1 + state, kind), colour).astype(np.uint8)


@functools.partial(jax.jit, static_argnums=0)
def _encode(obs: str, views: np.ndarray) -> jax.Array:
    return jax.vmap(view.ENCODINGS[obs].encode)(jnp.asarray(views))


def _world(source: Any, size: tuple[int, int]) -> np.ndarray:
    """The whole world, uint8 `[W, H, 3]`, with the agent in it, as MiniGrid's `FullyObsWrapper` shows it.

    Where it is smaller than `size`, `(W, H)`, the rest is wall.
    """
    image = np.empty((*size, 3), np.uint8)
    image[:] = symbols.WALL, symbols.GREY, 0
    image[: source.width, : source.height] = source.grid.encode()
    image[tuple(source.agent_pos)] = symbols.AGENT, symbols.RED, source.agent_dir
    return image
