"""The sum of gradients over devices, with only the kept blocks on the wire where that is exact."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array

from pallas_kernels.layout import spread_blocks, take_blocks
from sparsemlp.mask_trees import Masks, flatten_masks
from sparsemlp.plan import Plan, masking_for
from sparsemlp.planned_kernels import path_of


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
        name = path_of(entries)
        rule = masking_for(plan, name)
        if name in found and rule is not None and rule.backward == "masked":
            rebuild[name] = mask = found[name]
            matrix = gradient.reshape(mask.kernel_shape)
            sent[name] = take_blocks(matrix, mask.kept, mask.block[::-1])
        else:
            sent[name] = gradient
    received = jax.lax.psum(sent, axis_name)

    def whole(entries: Any, gradient: Array) -> Array:
        name = path_of(entries)
        if name not in rebuild:
            return received[name]
        mask = rebuild[name]
        matrix = spread_blocks(received[name], mask.kept, mask.kernel_shape)
        return matrix.reshape(gradient.shape)

    return jax.tree.map_with_path(whole, gradients)
