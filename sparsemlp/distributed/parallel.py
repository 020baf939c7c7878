"""Data parallelism: one program on a mesh of devices, each with its part of every batch.

Arrays are global, and all but the model's own work is partitioned by XLA. Forward and backward
pass run under `jax.shard_map`, where the native engines see the arrays of one device. The numbers
are those of one device to rounding: what is random is drawn for the whole batch, and each device
takes its part. Devices may belong to several processes, of which each runs the same program.
"""

import collections
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsemlp.errors import InputError
from sparsemlp.varying import AXIS


def data_mesh(n_devices: int | None, batch_size: int) -> Mesh | None:
    """The devices to train on; None for one, which needs no mesh.

    Args:
      n_devices: how many; None takes all that JAX sees.
      batch_size: images in a step, of all devices together.

    Raises:
      InputError: there are not so many devices, they do not divide the batch, or processes have
        different numbers of them.
    """
    devices, n_processes = jax.devices(), jax.process_count()
    if n_devices is None:
        n_devices = len(devices)
    if n_processes > 1 and n_devices != len(devices):
        raise InputError(
            f"--devices={n_devices}: {n_processes} processes train on all of their {len(devices)} "
            "devices together: leave --devices out, or let each process see fewer"
        )
    counts = collections.Counter(device.process_index for device in devices)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"process {index} has {counts[index]}" for index in sorted(counts))
        raise InputError(
            f"every process needs as many devices as the others, but {each}: let those with more "
            "see fewer (CUDA_VISIBLE_DEVICES, JAX_NUM_CPU_DEVICES)"
        )
    if not 1 <= n_devices <= len(devices):
        more = "; JAX_NUM_CPU_DEVICES=N makes N of a CPU" if jax.default_backend() == "cpu" else ""
        raise InputError(
            f"--devices={n_devices}: JAX sees {len(devices)} ({devices[0].device_kind}), choose "
            f"from 1 to {len(devices)}{more}"
        )
    if batch_size % n_devices:
        raise InputError(
            f"--batch-size={batch_size} cannot be shared out among {n_devices} devices: "
            f"{batch_size} % {n_devices} != 0; choose another, or fewer --devices"
        )
    if n_devices == 1:
        return None
    return Mesh(np.asarray(devices[:n_devices]), (AXIS,), axis_types=(AxisType.Auto,))


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """The arrays of a tree on every device of the mesh.

    With several processes each holds all of them already; nothing is sent from one to another.
    """
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, P())
    if not mesh.is_multi_process:
        return jax.device_put(tree, sharding)

    def whole(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf
        copies = [jax.device_put(leaf, device) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(copies[0].shape, sharding, copies)

    return jax.tree.map(whole, tree)


def replicate_first(tree: Any, mesh: Mesh | None) -> Any:
    """The arrays of a tree as process 0 has them on every device of the mesh, bit for bit.

    Args:
      tree: arrays of this process; of the same shapes and dtypes on all of them.
      mesh: the devices.
    """
    if mesh is None or not mesh.is_multi_process:
        return replicate(tree, mesh)
    arrays = jax.tree.map(np.asarray, tree)
    # As integers, since a sum over the processes brings them: zeros keep their sign.
    words = jax.tree.map(lambda array: np.frombuffer(array.tobytes(), np.uint8), arrays)
    sent = multihost_utils.broadcast_one_to_all(words)

    def rebuilt(array: np.ndarray, word: Any) -> np.ndarray:
        return np.frombuffer(np.asarray(word).tobytes(), array.dtype).reshape(array.shape)

    return replicate(jax.tree.map(rebuilt, arrays, sent), mesh)


def own_copy(tree: Any) -> Any:
    """Arrays that every device has whole, as this process alone can use them."""
    return jax.tree.map(
        lambda leaf: leaf if leaf.is_fully_addressable else leaf.addressable_data(0), tree
    )


def split(tree: Any, mesh: Mesh | None) -> Any:
    """Inside `jax.jit`: arrays whose first axis is divided among the devices."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, P(AXIS)))


def join(tree: Any, mesh: Mesh | None) -> Any:
    """Inside `jax.jit`: arrays that every device has whole."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, P()))


def on_every_device(
    mesh: Mesh, function: Callable[..., Any], *, whole: tuple[Any, ...], parts: tuple[Any, ...]
) -> Any:
    """Calls `function(*whole, *parts)` on every device with its part of the first axis.

    Args:
      mesh: the devices.
      function: returns `(summed, mapped)`: what is equal on all devices, and what has the first
        axis of `parts`.
      whole: operands that every device has whole.
      parts: operands that are divided.
    """
    specs = (*(P() for _ in whole), *(P(AXIS) for _ in parts))
    # JAX's check of what varies refuses its own `erf`; nothing here is differentiated through.
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=(P(), P(AXIS)), check_vma=False
    )
    return mapped(*whole, *parts)


def usable(mesh: Mesh | None, batch: int) -> Mesh | None:
    """The mesh where its devices divide a batch; else None: every device computes all of it."""
    return None if mesh is None or batch % mesh.size else mesh
