"""The sum of gradients over devices, with only the kept blocks on the wire where that is exact."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sparsemlp.mask_trees import Masks, flatten_masks
from sparsemlp.masks import BlockMask
from sparsemlp.plan import Plan, masking_for, path_of
from sparsemlp.selection import cut


def sum_gradients(gradients: Mapping[str, Any], masks: Masks, plan: Plan, axis_name: str) -> Any:
    """The gradients summed over the devices of a mesh axis; call it under `jax.shard_map`.

    Every device has the same parameters, hence the same masks. With the masked backward the
    gradient of a kernel is zero outside its kept blocks, so the devices exchange those alone,
    `[k, cols, rows]`: the share of the bytes is the density, and the sum is that of the whole
    gradients. With another backward, and where nothing is masked, gradients are exchanged whole.

    Args:
      gradients: of this device's images, nested like the parameters.
      masks: the masks of the step, the same on every device.
      plan: which parameter gets which rules.
      axis_name: the axis of the mesh.

    Returns:
      The same tree, equal on all devices.
    """
    found = flatten_masks(masks)
    sent, rebuild = {}, {}
    for entries, gradient in jax.tree.leaves_with_path(gradients):
        path = path_of(entries)
        name = "/".join(path)
        rule = masking_for(plan, path)
        if name in found and rule is not None and rule.backward == "masked":
            sent[name] = gather_blocks(gradient, found[name])
            rebuild[name] = found[name]
        else:
            sent[name] = gradient
    received = jax.lax.psum(sent, axis_name)

    def whole(entries: Any, gradient: Array) -> Array:
        name = "/".join(path_of(entries))
        if name not in rebuild:
            return received[name]
        return scatter_blocks(received[name], rebuild[name]).reshape(gradient.shape)

    return jax.tree.map_with_path(whole, gradients)


def gather_blocks(
    kernel: Float[Array, "*window in out"], mask: BlockMask
) -> Float[Array, "k cols rows"]:
    """The kept blocks of a kernel, `[k, cols, rows]`, in the order of `mask.kept`."""
    blocks = cut(kernel, mask.block)
    return blocks.reshape(mask.n_blocks, *blocks.shape[2:])[mask.kept]


def scatter_blocks(blocks: Float[Array, "k cols rows"], mask: BlockMask) -> Float[Array, "in out"]:
    """The kernel `[in, out]` that has these blocks where they are kept, and zeros elsewhere."""
    (down, across), (rows, cols) = mask.grid_shape, mask.block
    empty = jnp.zeros((mask.n_blocks, cols, rows), blocks.dtype)
    filled = empty.at[mask.kept].set(blocks, indices_are_sorted=True, unique_indices=True)
    return filled.reshape(down, across, cols, rows).swapaxes(1, 2).reshape(mask.kernel_shape)
