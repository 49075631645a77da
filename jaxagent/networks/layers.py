"""Layers, formulated for speed on CPUs as well as accelerators. Letters: `N` rows, `T` time, `B` batch, `H` width."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxagent.networks.init import orthogonal

# Up to this width a convolution along it is cheaper as a product with a banded matrix.
_WIDEST_BAND = 16
# Up to this many columns weighted sums beat a matrix product.
_FEW_COLUMNS = 8


class Dense(nn.Module):
    """An affine layer with orthogonal weights and zero bias: [..., inputs] to [..., features].

    Attributes:
      features: outputs.
      scale: of the weights.
      dtype: what it computes in.
    """

    features: int
    scale: float = 2.0**0.5
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", orthogonal(self.scale), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        x, kernel, bias = (array.astype(self.dtype) for array in (x, kernel, bias))
        return matmul(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], self.features) + bias


@jax.custom_vjp
def matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel` of [N, I] and [I, O], with a gradient of the kernel that is fast on CPUs.

    That gradient contracts the long leading axes of two arrays, for which XLA's CPU product takes three times as long as for
    the same numbers laid out the other way; it was half the time of a PPO update.
    """
    return x @ kernel


def _matmul_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _matmul_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    of_kernel = jax.lax.platform_dependent(x, gradient, cpu=_contract_rows_on_cpu, default=lambda a, b: a.T @ b)
    return gradient @ kernel.T, of_kernel


def _contract_rows_on_cpu(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a.T @ b` of [N, I] and [N, O]."""
    if b.shape[1] <= _FEW_COLUMNS:
        return jnp.stack([jnp.sum(a * b[:, i : i + 1], axis=0) for i in range(b.shape[1])], axis=1)
    # the barrier keeps XLA from folding the copy back into the product
    return jax.lax.optimization_barrier(a.T) @ b


matmul.defvjp(_matmul_forward, _matmul_backward)


class Embedding(nn.Module):
    """A learnt vector for each of `num` integers; larger integers count as `num - 1`."""

    num: int
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Integers [...] to float32 [..., features]."""
        table = self.param("table", nn.initializers.normal(self.features**-0.5), (self.num, self.features))
        # a gather: over ten times faster on CPUs, gradient included, than a product with one-hot rows
        return table.at[x.astype(jnp.int32)].get(mode="clip")


class Conv(nn.Module):
    """A convolution without padding over images [N, X, Y, channels], with kernels of at most 3 x 3."""

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size_x, size_y, channels = x.shape[1:]
        kernel_shape = (min(3, size_x), min(3, size_y), channels, self.features)
        kernel = self.param("kernel", orthogonal(2.0**0.5), kernel_shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        if self.stride == 1 and size_y <= _WIDEST_BAND:
            return banded_conv(x, kernel) + bias
        strides = (self.stride, self.stride)
        return jax.lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias


def banded_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of images [N, X, Y, C] with a kernel [a, b, C, F] as one matrix product.

    The product's rows are windows of `a` whole image rows; its matrix holds a copy of the kernel for each position along a row
    (a banded matrix), hence more multiplications than needed. For grids of about ten cells it is still two to four times faster
    on CPUs, gradient included, than XLA's convolution, and than the usual patches of a x b cells.
    """
    height, width, channels, features = kernel.shape
    num, size_x, size_y, _ = x.shape
    out_x, out_y = size_x - height + 1, size_y - width + 1
    shifts = np.stack([np.eye(size_y, out_y, -shift, dtype=np.float32) for shift in range(width)])  # [b, Y, out_y]
    matrix = jnp.einsum("abcf,byo->aycof", kernel, shifts).reshape(height * size_y * channels, out_y * features)
    lines = x.reshape(num, size_x, size_y * channels)
    windows = jnp.concatenate([lines[:, i : i + out_x] for i in range(height)], axis=-1)
    return matmul(windows.reshape(num * out_x, -1), matrix).reshape(num, out_x, out_y, features)


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014; the reset gate acts after the product, as in cuDNN)."""

    width: int

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, is_first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs over time.

        Args:
          carry: memory [B, H] before the first step.
          x: inputs [T, B, F].
          is_first: bool [T, B]; memory is cleared before such a step.

        Returns:
          Memory [B, H] after the last step, and outputs [T, B, H].
        """
        of_inputs = Dense(3 * self.width, scale=1.0, name="input")(x)  # for all steps at once
        kernel = self.param("recurrent_kernel", _three_orthogonal, (self.width, 3 * self.width))
        bias = self.param("recurrent_bias", nn.initializers.zeros_init(), (self.width,))

        def step(hidden: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            of_input, first = inputs
            hidden = jnp.where(first[:, None], 0.0, hidden)
            reset_x, update_x, candidate_x = jnp.split(of_input, 3, axis=-1)
            reset_h, update_h, candidate_h = jnp.split(hidden @ kernel, 3, axis=-1)
            reset = nn.sigmoid(reset_x + reset_h)
            update = nn.sigmoid(update_x + update_h)
            candidate = jnp.tanh(candidate_x + reset * (candidate_h + bias))
            hidden = candidate + update * (hidden - candidate)
            return hidden, hidden

        return jax.lax.scan(step, carry, (of_inputs, is_first))


def _three_orthogonal(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """One orthogonal block a gate, [H, 3 H]."""
    block_shape = (shape[0], shape[0])
    return jnp.concatenate([orthogonal()(block_key, block_shape) for block_key in jax.random.split(key, 3)], axis=1)
