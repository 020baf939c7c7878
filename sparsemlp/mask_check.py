"""Whether what a layer is given as its mask is one."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from sparsemlp.errors import InputError
from sparsemlp.masks import BlockMask, GridMask


def check_mask(mask: object) -> None:
    """Raises InputError unless `mask` is None, or a BlockMask or GridMask of one kernel."""
    if mask is None:
        return
    if isinstance(mask, Mapping):
        if any(map(_is_mask, jax.tree.leaves(mask, is_leaf=_is_mask))):
            raise InputError(
                f"a mask is a tree of masks here, with {', '.join(map(str, mask))}: give the mask "
                "of this kernel alone, such as masks['block_0']['XPatch']['kernel']"
            )
        way = "flax.serialization.from_state_dict(masks, state)"
        if "block" not in mask:
            way = "checkpointer.restore(path, masks), if they have the same blocks,"
        raise InputError(
            f"a mask is a mapping of {', '.join(map(str, mask)) or 'nothing'} here: restore masks "
            f"into those that select_masks makes, as {way} does it, or select them anew"
        )
    if not isinstance(mask, BlockMask | GridMask):
        raise InputError(
            f"a mask of type {type(mask).__name__} is not understood: pass a BlockMask, as "
            "select_blocks makes it, or a GridMask; of booleans, GridMask of those of the blocks"
        )
    kept = mask.kept
    if not hasattr(kept, "dtype"):
        raise InputError(
            f"kept of a {type(mask).__name__} is a {type(kept).__name__}: give an array, of the "
            "ids of the kept blocks, int32, or of a boolean for each block"
        )
    if isinstance(mask, BlockMask):
        if kept.ndim != 1 or not jnp.issubdtype(kept.dtype, jnp.integer):
            raise InputError(
                f"kept of a BlockMask is {kept.dtype} {kept.shape}: give int32 [k], the ids of the "
                "kept blocks; booleans are for a GridMask, stacked masks for jax.vmap and "
                "jax.lax.scan"
            )
        n_blocks = mask.n_blocks
        # Ids on a device are not looked at: that would wait for it, and may be in a program.
        if isinstance(kept, np.ndarray) and not _ascend(kept, n_blocks):
            raise InputError(
                f"kept of a BlockMask names blocks that do not ascend within [0, {n_blocks}): give "
                "each id once, ascending"
            )
        return
    if kept.dtype != jnp.bool_ or kept.shape != mask.grid_shape:
        raise InputError(
            f"kept of a GridMask is {kept.dtype} {kept.shape}: give a boolean for each block, "
            f"{mask.grid_shape}"
        )
    if (mask.in_input_gradient is None) != (mask.in_kernel_gradient is None):
        raise InputError(
            "a GridMask says of one gradient alone whether it uses the mask: give both "
            "in_input_gradient and in_kernel_gradient, or neither"
        )
    for name in ("in_input_gradient", "in_kernel_gradient"):
        flag = getattr(mask, name)
        if flag is not None and (jnp.shape(flag) or jnp.result_type(flag) != jnp.bool_):
            raise InputError(
                f"{name} of a GridMask is {jnp.result_type(flag)} {jnp.shape(flag)}: give one "
                "boolean, True where the gradient uses the mask"
            )


def _is_mask(node: object) -> bool:
    return isinstance(node, BlockMask | GridMask)


def _ascend(ids: np.ndarray, n: int) -> bool:
    inside = not ids.size or (ids[0] >= 0 and ids[-1] < n)
    return bool(inside and np.all(ids[1:] > ids[:-1]))
