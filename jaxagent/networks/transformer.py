"""A small decoder-only transformer over all that an agent was shown in an episode, with its keys and values as memory.

Letters: `T` steps, `B` rows, `K` tokens a step at most, `S` tokens of a row, `C` slots of the memory, `D` width, `H` heads,
`d = D / H`. Keys and values are kept by head, so that a product with them reads memory in order, and copies nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxagent.networks.layers import Dense, Embedding
from jaxagent.networks.torsos import Torso
from jaxagent.ops.lanes import largest
from jaxagent.types import DictSpace, MultiDiscrete, PyTree, Space

_BASE = 10_000.0  # of the rotary wavelengths


@dataclass(frozen=True)
class Size:
    """Of a transformer.

    Attributes:
      layers: attention and a perceptron each.
      heads: of the attention; the width is a multiple of twice as many.
      width: D.
      context: how many of the last tokens of the episode a token attends to.
      bf16: whether products are computed in bfloat16.
      remat: whether activations are computed once more for the gradient, to need less memory.
    """

    layers: int
    heads: int
    width: int
    context: int
    bf16: bool = False
    remat: bool = False

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.bfloat16 if self.bf16 else jnp.float32)


class Cache(NamedTuple):
    """Keys and values of an episode's last tokens, the one at position p in slot `p % C`: [B, H, C, d] for each layer."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    length: jax.Array  # int32 [B], tokens of the episode so far


def empty_cache(space: Space, size: Size, num_rows: int) -> Cache:
    """Before the first token of an episode. A step's own tokens never push out what they attend to."""
    slots = size.context + (_num_tokens(space) if is_token_stream(space) else 1)

    def empty() -> tuple[jax.Array, ...]:
        shape = (num_rows, size.heads, slots, size.width // size.heads)
        return tuple(jnp.zeros(shape, size.dtype) for _ in range(size.layers))

    return Cache(empty(), empty(), jnp.zeros(num_rows, jnp.int32))


class Layout(NamedTuple):
    """Where tokens stand. Leaves are [B, S] unless they say otherwise."""

    position: jax.Array  # int32, within the episode
    episode: jax.Array  # int32, 0 for the one that goes on, counted up at each first step
    valid: jax.Array  # bool
    decision: jax.Array  # int32 [B, T], place of the last token of each step
    length: jax.Array  # int32 [B], tokens of the last episode after the last step


def is_token_stream(space: Space) -> bool:
    """Whether observations are what was added to a text: `tokens`, of which `num_tokens` count."""
    return isinstance(space, DictSpace) and {"tokens", "num_tokens"} <= set(space)


class Transformer(nn.Module):
    """Reads what each step adds and attends to what the episode held before it (Vaswani et al. 2017).

    Root-mean-square norms before each part (Zhang and Sennrich 2019), rotary positions (Su et al. 2021). A step adds the tokens
    of its observation, or one vector of features if that is no stream of tokens.

    Attributes:
      space: structure of one observation.
      size: of the network.
      torso: encodes observations that are no streams of tokens.
    """

    space: Space
    size: Size
    torso: Torso

    def setup(self) -> None:
        block = nn.remat(Block) if self.size.remat else Block
        self.blocks = [block(self.size, name=f"block_{i}") for i in range(self.size.layers)]
        self.norm = RMSNorm()
        if is_token_stream(self.space):
            self.embedding = Embedding(_tokens(self.space).nvec[0], self.size.width)
        else:
            self.project = Dense(self.size.width, scale=1.0)

    def __call__(
        self, carry: Cache | None, observation: PyTree, is_first: jax.Array, *, num_tokens: int | None = None
    ) -> tuple[Cache | None, jax.Array]:
        """Consecutive steps.

        Args:
          carry: memory before the first step; None if every row begins an episode and no memory is asked for afterwards.
          observation: leaves [T, B, ...].
          is_first: bool [T, B]; memory is cleared before such a step.
          num_tokens: a bound of the tokens of a row, if there is one below `T * K`.

        Returns:
          Memory after the last step, and features [T, B, D] of each step, which know what it and the steps before it showed.
        """
        x, counts = self._embedded(observation, is_first)
        start = jnp.zeros(is_first.shape[1], jnp.int32) if carry is None else carry.length
        x, layout = _arranged(x, counts, is_first, start, num_tokens)
        carry, features = self._attended(carry, x, layout)
        return carry, jnp.swapaxes(features, 0, 1)

    def act(self, carry: Cache, observation: PyTree, is_first: jax.Array) -> tuple[Cache, jax.Array]:
        """One step, leaves [B, ...], a token after the other: as many as any row has, where `__call__` reads K of each row.

        Not differentiable. Returns the memory and features [B, D].
        """
        if not is_token_stream(self.space) or self.is_initializing():
            carry_after, features = self(carry, *jax.tree.map(lambda x: x[None], (observation, is_first)))
            assert carry_after is not None
            return carry_after, features[0]
        x, counts = self.embedding(observation["tokens"]), jnp.asarray(observation["num_tokens"], jnp.int32)
        num_slots, zero = carry.keys[0].shape[2], jnp.zeros((is_first.shape[0], 1), jnp.int32)

        def read(network: "Transformer", loop: tuple[jax.Array, Cache, jax.Array]) -> tuple[jax.Array, Cache, jax.Array]:
            place, cache, features = loop
            counted = place < counts
            layout = Layout(cache.length[:, None], zero, counted[:, None], zero, cache.length + counted)
            slots = _slots(layout.length, num_slots)
            seen = _mask(layout, slots, jnp.zeros_like(slots), slots >= 0, network.size.context)
            slot = jnp.where(counted, cache.length % num_slots, num_slots)[:, None]
            token, keys, values = jax.lax.dynamic_slice_in_dim(x, place, 1, axis=1), [], []
            for block, *remembered in zip(network.blocks, cache.keys, cache.values, strict=True):
                token, key, value = block(token, layout.position, seen, seen, (remembered[0], remembered[1]), None, slot)
                keys.append(key)
                values.append(value)
            found = network.norm(token)[:, 0].astype(jnp.float32)
            cache = Cache(tuple(keys), tuple(values), layout.length)
            return place + 1, cache, jnp.where(counted[:, None], found, features)

        begun = carry._replace(length=jnp.where(is_first, 0, carry.length))
        loop = jnp.int32(0), begun, jnp.zeros((is_first.shape[0], self.size.width), jnp.float32)
        most = largest(counts)
        _, carry, features = nn.while_loop(lambda network, loop: loop[0] < most, read, self, loop)
        return carry, features

    def _attended(self, carry: Cache | None, x: jax.Array, layout: Layout) -> tuple[Cache | None, jax.Array]:
        """Tokens [B, S, D] to the memory after them, and features [B, T, D] of each step."""
        seen = _mask(layout, layout.position, layout.episode, layout.valid, self.size.context)
        before = None
        if carry is not None:
            slots = _slots(carry.length, carry.keys[0].shape[2])
            before = _mask(layout, slots, jnp.zeros_like(slots), slots >= 0, self.size.context)
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            remembered = None if carry is None else (carry.keys[i], carry.values[i])
            only = layout.decision if i == len(self.blocks) - 1 else None  # nothing reads the others' last features
            x, key, value = block(x, layout.position, seen, before, remembered, only)
            keys.append(key)
            values.append(value)
        features = self.norm(x).astype(jnp.float32)
        return None if carry is None else _remembered(carry, keys, values, layout), features

    def _embedded(self, observation: PyTree, is_first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What each step adds, [T, B, K, D], and how much of it counts, int32 [T, B]."""
        if is_token_stream(self.space):
            return self.embedding(observation["tokens"]), jnp.asarray(observation["num_tokens"], jnp.int32)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
        features = self.project(self.torso(rows)).reshape(*is_first.shape, 1, self.size.width)
        return features, jnp.ones(is_first.shape, jnp.int32)


class Block(nn.Module):
    """Attention, then a perceptron, each added to what it reads."""

    size: Size

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        position: jax.Array,
        seen: jax.Array,
        before: jax.Array | None,
        remembered: tuple[jax.Array, jax.Array] | None,
        only: jax.Array | None,
        slot: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Tokens [B, S, D] that attend to each other as `seen` [B, S, S] says, and to a memory as `before` [B, S, C] says.

        Returns what comes of them, or `only` of those at [B, T], and their keys and values [B, H, S, d]. With a `slot` [B, S]
        they are first written into the memory, and read there alone; then the memory is returned instead.
        """
        size = self.size
        small = 1.0 / (2.0 * size.layers) ** 0.5  # keeps the sum of all layers' outputs of one size
        h = RMSNorm(name="attention_norm")(x)
        key = _rotated(_by_head(self._dense(size.width, 1.0, "key")(h), size.heads), position)
        value = _by_head(self._dense(size.width, 1.0, "value")(h), size.heads)
        if only is not None:
            x, h = (jnp.take_along_axis(y, only[..., None], axis=1) for y in (x, h))
            seen = jnp.take_along_axis(seen, only[..., None], axis=1)
            before = None if before is None else jnp.take_along_axis(before, only[..., None], axis=1)
            position = jnp.take_along_axis(position, only, axis=1)
        query = _rotated(_by_head(self._dense(size.width, 1.0, "query")(h), size.heads), position)
        sources = [(key, value, seen)]
        if remembered is not None and before is not None:
            if slot is not None:
                key, value = (_written(old, new, slot) for old, new in zip(remembered, (key, value), strict=True))
                sources = [(key, value, before)]
            else:
                sources.append((*remembered, before))
        attended = _attention(query, sources).swapaxes(1, 2).reshape(x.shape)
        x = x + self._dense(size.width, small, "output")(attended)
        h = self._dense(4 * size.width, 2.0**0.5, "up")(RMSNorm(name="perceptron_norm")(x))
        return x + self._dense(size.width, small, "down")(nn.gelu(h)), key, value

    def _dense(self, features: int, scale: float, name: str) -> Dense:
        return Dense(features, scale, self.size.dtype, name=name)


class RMSNorm(nn.Module):
    """Scales vectors to a root mean square of 1, and each entry by what is learnt."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _by_head(x: jax.Array, heads: int) -> jax.Array:
    """[B, S, D] as [B, H, S, d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _attention(query: jax.Array, sources: list[tuple[jax.Array, jax.Array, jax.Array]]) -> jax.Array:
    """Each query [B, H, Q, d] reads values [B, H, S, d] of the keys [B, H, S, d] that a mask [B, Q, S] lets it see.

    There may be several such sources: the memory is read where it is, not copied beside what is new.
    """
    scale, least = query.shape[-1] ** -0.5, jnp.finfo(jnp.float32).min
    products = [
        jnp.where(mask[:, None], jnp.einsum("bhqd,bhsd->bhqs", query, keys, preferred_element_type=jnp.float32) * scale, least)
        for keys, _, mask in sources
    ]
    weights = jax.nn.softmax(jnp.concatenate(products, axis=-1), axis=-1).astype(query.dtype)
    ends = np.cumsum([product.shape[-1] for product in products])[:-1]
    parts = zip(jnp.split(weights, ends, axis=-1), sources, strict=True)
    read = [jnp.einsum("bhqs,bhsd->bhqd", part, values) for part, (_, values, _) in parts]
    return sum(read[1:], read[0])


def _rotated(x: jax.Array, position: jax.Array) -> jax.Array:
    """Turns the pairs of entries of [B, H, S, d] by angles that grow with the position: products then depend on distances."""
    half = x.shape[-1] // 2
    angles = position[:, None, :, None].astype(jnp.float32) * _BASE ** (-jnp.arange(half) / half)  # [B, 1, S, half]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


# where tokens stand -----------------------------------------------------------------------------------------------------------


def _arranged(
    x: jax.Array, counts: jax.Array, is_first: jax.Array, start: jax.Array, num_tokens: int | None
) -> tuple[jax.Array, Layout]:
    """Tokens [T, B, K, D] of which `counts` [T, B] count, side by side [B, S, D]; a row begins at position `start` [B]."""
    num_steps, num_rows, width = x.shape[:3]
    offset = jnp.cumsum(counts, axis=0) - counts  # tokens of earlier steps
    origin = jax.lax.cummax(jnp.where(is_first, offset, -start), axis=0)  # position 0 of the step's episode
    step, place = jnp.arange(num_steps)[:, None, None], jnp.arange(width)
    counted = place < counts[..., None]  # [T, B, K]
    fields = (
        jnp.broadcast_to(offset[..., None] + place, counted.shape) - origin[..., None],
        jnp.broadcast_to(jnp.cumsum(is_first, axis=0)[..., None], counted.shape),
    )
    length = (offset + counts - origin)[-1]
    size = num_steps * width
    rows = jnp.moveaxis(x, 1, 0).reshape(num_rows, size, -1)
    position, episode = (jnp.moveaxis(field, 1, 0).reshape(num_rows, size) for field in fields)
    if num_tokens is None or num_tokens >= size:
        decision = (step[..., 0] * width + jnp.maximum(counts, 1) - 1).T
        valid = jnp.moveaxis(counted, 1, 0).reshape(num_rows, size)
        return rows, Layout(position, episode, valid, decision, length)
    target = jnp.where(counted, offset[..., None] + place, num_tokens)
    target = jnp.moveaxis(target, 1, 0).reshape(num_rows, size)
    each_row = jnp.arange(num_rows)[:, None]
    source = jnp.zeros((num_rows, num_tokens), jnp.int32).at[each_row, target].set(jnp.arange(size), mode="drop")
    rows = jnp.take_along_axis(rows, source[..., None], axis=1)
    position, episode = (jnp.take_along_axis(field, source, axis=1) for field in (position, episode))
    valid = jnp.arange(num_tokens) < counts.sum(0)[:, None]
    decision = jnp.clip((offset + counts - 1).T, 0, num_tokens - 1)
    return rows, Layout(position, episode, valid, decision, length)


def _mask(layout: Layout, position: jax.Array, episode: jax.Array, valid: jax.Array, context: int) -> jax.Array:
    """Which of the tokens at `position` [B, n] each token of the layout sees, bool [B, S, n]."""
    distance = layout.position[:, :, None] - position[:, None]
    same = layout.episode[:, :, None] == episode[:, None]
    return same & valid[:, None] & (distance >= 0) & (distance < context)


def _slots(length: jax.Array, num_slots: int) -> jax.Array:
    """Position of the token in each slot of a memory of `length` [B] tokens, int32 [B, C]; negative in empty ones."""
    newest = length[:, None] - 1
    return newest - (newest - jnp.arange(num_slots)) % num_slots


def _remembered(carry: Cache, keys: list[jax.Array], values: list[jax.Array], layout: Layout) -> Cache:
    """The memory with the tokens of the last episode, if they are among the newest."""
    num_slots = carry.keys[0].shape[2]
    last = layout.episode == jnp.max(layout.episode, axis=1, where=layout.valid, initial=0)[:, None]
    kept = layout.valid & last & (layout.position >= layout.length[:, None] - num_slots)
    slot = jnp.where(kept, layout.position % num_slots, num_slots)
    return Cache(
        tuple(_written(old, new, slot) for old, new in zip(carry.keys, keys, strict=True)),
        tuple(_written(old, new, slot) for old, new in zip(carry.values, values, strict=True)),
        layout.length,
    )


def _written(old: jax.Array, new: jax.Array, slot: jax.Array) -> jax.Array:
    """A memory [B, H, C, d] with [B, H, S, d] in its slots [B, S]; those that are C are dropped."""
    rows = jnp.arange(slot.shape[0])[:, None]
    return old.at[rows, :, slot].set(new.swapaxes(1, 2).astype(old.dtype), mode="drop")


def _tokens(space: Space) -> MultiDiscrete:
    assert isinstance(space, DictSpace)
    tokens = space["tokens"]
    assert isinstance(tokens, MultiDiscrete)
    return tokens


def _num_tokens(space: Space) -> int:
    """K."""
    return len(_tokens(space).nvec)
