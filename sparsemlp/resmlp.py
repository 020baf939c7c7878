"""ResMLP (Touvron et al., arXiv 2105.03404) with a plan for its sparsity.

The parameter tree names its layers as the thesis does: `block_3/XPatch/kernel` mixes tokens,
`block_3/XChannel1/kernel` and `block_3/XChannel2/kernel` expand and contract channels.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from sparsemlp.activations import keep_only_compact
from sparsemlp.errors import InputError, check_images, check_sizes
from sparsemlp.mixing import mix_tokens
from sparsemlp.mlp import sparse_mlp
from sparsemlp.module_plan import check_own, frozen_plan
from sparsemlp.modules import Affine, LayerScale, SparseDense, StochasticDepth
from sparsemlp.plan import Plan
from sparsemlp.varying import refuse_explicit_axes

_LINEAR_INIT = nn.initializers.normal(0.02)
"""The original truncates at an absolute 2, which is 100 standard deviations: a plain normal."""

_EMBED_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""The original's embedding is a convolution that is left at its framework's default."""


class ResMLPBlock(nn.Module):
    """One residual block: token mixing, then a channel MLP.

    `x += g1 * XPatch(Affine(x)^T)^T` and `x += g2 * XChannel2(gelu(XChannel1(Affine(x))))`.

    Where the plan has a rule for an activation, the backward pass is given the input of that branch
    and what the rules keep, nothing else: affine, GELU and layer scale are computed again, and with
    them the products before them.

    Attributes:
      expansion: hidden features over features of the channel MLP.
      layer_scale: value that the layer scales start from.
      drop_path: probability that a sample loses a residual branch.
      plan: which parameter gets which rules.
      engine: who computes masked products.
      dtype: dtype of the computation.
    """

    expansion: int
    layer_scale: float
    drop_path: float
    plan: Plan
    engine: str
    dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch tokens dim"], train: bool
    ) -> Float[Array, "batch tokens dim"]:
        """Maps `[batch, tokens, dim]` to the same shape."""
        tokens, dim = x.shape[-2:]
        linear = functools.partial(
            SparseDense,
            plan=self.plan,
            engine=self.engine,
            dtype=self.dtype,
            kernel_init=_LINEAR_INIT,
        )
        drop_path = StochasticDepth(self.drop_path)

        def scales(index: int) -> tuple[tuple[Array, Array], Array]:
            scale, shift, after = promote_dtype(
                *Affine(name=f"affine{index}").parameters(dim),
                LayerScale(self.layer_scale, name=f"scale{index}").parameters(dim),
                dtype=x.dtype,
            )
            return (scale, shift), after

        before, after = scales(1)
        mixing = linear(tokens, axis=-2, name="XPatch").weights(tokens, x)
        mix = functools.partial(
            mix_tokens, layer=mixing, before=before, after=after, engine=self.engine
        )
        mix = mix if mixing.activation is None else keep_only_compact(mix)
        with jax.named_scope("XPatch"):
            mixed = mix(x)
        x = x + drop_path(mixed, train=train)
        before, after = scales(2)
        first = linear(self.expansion * dim, name="XChannel1").weights(dim, x)
        second = linear(dim, name="XChannel2").weights(self.expansion * dim, x)
        mlp = functools.partial(
            sparse_mlp,
            first=first,
            second=second,
            before=before,
            after=after,
            residual=not self.drop_path,
            engine=self.engine,
        )
        if first.activation is not None or second.activation is not None:
            mlp = keep_only_compact(mlp)
        with jax.named_scope("XChannel"):
            mixed = mlp(x)
        return x + drop_path(mixed, train=train) if self.drop_path else mixed


class ResMLP(nn.Module):
    """ResMLP image classifier.

    Its masks come in as the variable collection `masks`, from
    `select_masks(params, model.plan)`; without it the model is dense.

    Attributes:
      image_size: height and width of an image, in pixels.
      patch_size: height and width of a patch, in pixels; divides the image size.
      channels: colour channels of an image.
      dim: features of a token.
      depth: number of blocks.
      expansion: hidden features over features of the channel MLPs.
      n_classes: number of classes.
      drop_path: probability that a sample loses a residual branch, the same in every block.
      layer_scale: value that the layer scales start from; None is the published one: 0.1 up to
        depth 18, 1e-5 up to depth 24, 1e-6 beyond.
      plan: which parameter gets which rules, see `sparsemlp.plan`.
      remat: whether the backward pass computes each block again from its input (`jax.checkpoint`).
      engine: who computes masked products.
      dtype: dtype of the computation; parameters and logits are float32.
    """

    image_size: int = 32
    patch_size: int = 4
    channels: int = 3
    dim: int = 64
    depth: int = 5
    expansion: int = 4
    n_classes: int = 10
    drop_path: float = 0.0
    layer_scale: float | None = None
    plan: Plan = FrozenDict()
    remat: bool = False
    engine: str = "auto"
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        self.plan = frozen_plan(self.plan)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Maps normalised images to logits.

        Args:
          images: float `[batch, image_size, image_size, channels]`.
          train: whether stochastic depth is on (random stream `drop_path`).

        Returns:
          float32 `[batch, n_classes]`.

        Raises:
          InputError: sizes that no model has, a patch that does not divide the image, images of
            another size, or sharded over explicit axes of a mesh.
        """
        check_sizes(self, dim=1, depth=0, expansion=1, n_classes=1)
        images = jnp.asarray(images)
        refuse_explicit_axes(images)
        check_images(self, images.shape)
        linear = functools.partial(
            SparseDense, plan=self.plan, engine=self.engine, dtype=self.dtype
        )
        x = linear(self.dim, kernel_init=_EMBED_INIT, name="embed")(
            patches(images, self.patch_size)
        )
        block = nn.remat(ResMLPBlock, static_argnums=(2,)) if self.remat else ResMLPBlock
        for index in range(self.depth):
            x = block(
                self.expansion,
                _layer_scale(self.depth) if self.layer_scale is None else self.layer_scale,
                self.drop_path,
                self.plan,
                self.engine,
                self.dtype,
                name=f"block_{index}",
            )(x, train)
        x = Affine(self.dtype, name="norm")(x)
        x = jnp.mean(x, axis=-2)
        logits = linear(self.n_classes, kernel_init=_LINEAR_INIT, name="head")(x)
        check_own(self, self.plan)
        (logits,) = promote_dtype(logits, dtype=jnp.float32)
        return logits


def patches(
    images: Float[Array, "batch height width channels"], patch_size: int
) -> Float[Array, "batch tokens features"]:
    """Cuts images into flattened patches, row by row.

    Args:
      images: `[batch, height, width, channels]`.
      patch_size: height and width of a patch, in pixels.

    Returns:
      `[batch, height / patch * width / patch, patch * patch * channels]`, features in the order
      row in the patch, column in the patch, channel.

    Raises:
      InputError: the patch is empty or does not divide the image.
    """
    batch, height, width, channels = images.shape
    if patch_size < 1:
        raise InputError(f"patch size {patch_size} is no number of pixels: it must be at least 1")
    if height % patch_size or width % patch_size:
        raise InputError(
            f"patch size {patch_size} does not divide the image {height}x{width}: "
            f"{height} % {patch_size} = {height % patch_size}, "
            f"{width} % {patch_size} = {width % patch_size}; choose one that does, such as "
            f"{_nearest_divisor(math.gcd(height, width), patch_size)} (--patch-size)"
        )
    down, across = height // patch_size, width // patch_size
    # Rows of patches are gathered whole: XLA's CPU backend transposes number by number.
    rows = np.arange(height * across).reshape(down, patch_size, across).swapaxes(1, 2).reshape(-1)
    strips = images.reshape(batch, height * across, patch_size * channels)[:, rows]
    return strips.reshape(batch, down * across, patch_size**2 * channels)


def _nearest_divisor(n: int, size: int) -> int:
    return min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - size))


def _layer_scale(depth: int) -> float:
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6
