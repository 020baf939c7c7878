"""ResMLP in NumPy and float64, written from the paper: what the library's model is checked against.

Shares no code with the library and does everything the plain way: explicit transposes, masks
multiplied into the kernels, gradients by hand.

Parameters are nested dicts of arrays, kernels `[in, out]`:
`{"embed": {"kernel", "bias"}, "block_0": {"affine1": {"scale", "bias"}, "XPatch": {"kernel",
"bias"}, "scale1": {"scale"}, "affine2": ..., "XChannel1": ..., "XChannel2": ..., "scale2": ...},
"block_1": ..., "norm": {"scale", "bias"}, "head": {"kernel", "bias"}}`. Masks are the part of
that tree that is masked, with bool arrays `[in, out]` (true: kept) as leaves, for example
`{"block_0": {"XPatch": {"kernel": kept}}}`.

References:
  Touvron et al., ResMLP, https://arxiv.org/abs/2105.03404, equations 1 to 3
"""

import math
from typing import Any, Literal

import numpy as np
from scipy.special import erf, log_softmax, softmax

Tree = dict[str, Any]
Backward = Literal["masked", "dense", "straight_through"]


def patches(images: np.ndarray, patch: int) -> np.ndarray:
    """Cut `[batch, height, width, c]` into `[batch, tokens, patch * patch * c]`.

    Tokens run over the image row by row; a token's vector holds the row in the patch, the column
    in the patch and the channel, the last one fastest.
    """
    batch, height, width, _ = images.shape
    tokens = [
        images[:, row : row + patch, column : column + patch].reshape(batch, -1)
        for row in range(0, height, patch)
        for column in range(0, width, patch)
    ]
    return np.stack(tokens, axis=1)


def resmlp_forward(params: Tree, images: np.ndarray, masks: Tree | None = None) -> np.ndarray:
    """Logits `[batch, classes]` of float images `[batch, height, width, c]`, in float64."""
    return _forward(_float64(params), np.asarray(images, np.float64), masks or {})[0]


def mean_cross_entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    """Cross entropy against distributions `[batch, classes]`, in nats, averaged over the batch."""
    return float(-(targets * log_softmax(logits, axis=1)).sum(axis=1).mean())


def resmlp_loss_gradients(
    params: Tree,
    images: np.ndarray,
    targets: np.ndarray,
    masks: Tree | None = None,
    backward: Backward = "masked",
) -> tuple[float, Tree]:
    """The mean cross entropy and its gradient, a tree like `params`.

    The forward product is always `x @ (kernel * mask)`. `backward` says where the mask acts on
    the way back: on both gradients ("masked"), on neither ("dense"), or on the gradient of x
    alone ("straight_through").
    """
    params, masks = _float64(params), masks or {}
    logits, tape = _forward(params, np.asarray(images, np.float64), masks)
    d_logits = softmax(logits, axis=1) * targets.sum(axis=1, keepdims=True) - targets
    d_logits /= len(logits)

    grads: Tree = {}
    d_mean, grads["head"] = _linear_vjp(d_logits, tape["mean"], params["head"], None, backward)
    tokens = tape["normed"].shape[1]
    d_normed = np.repeat(d_mean[:, None, :] / tokens, tokens, axis=1)
    dx, grads["norm"] = _affine_vjp(d_normed, tape["norm_in"], params["norm"])
    for name in reversed(_blocks(params)):
        dx, grads[name] = _block_vjp(dx, tape[name], params[name], masks.get(name, {}), backward)
    _, grads["embed"] = _linear_vjp(dx, tape["patches"], params["embed"], None, backward)
    return mean_cross_entropy(logits, targets), grads


def _forward(params: Tree, images: np.ndarray, masks: Tree) -> tuple[np.ndarray, Tree]:
    """The logits, and what each layer was given."""
    tape: Tree = {}
    patch = math.isqrt(params["embed"]["kernel"].shape[0] // images.shape[-1])
    tape["patches"] = patches(images, patch)
    x = _linear(tape["patches"], params["embed"], None)
    for name in _blocks(params):
        x, tape[name] = _block(x, params[name], masks.get(name, {}))
    tape["norm_in"] = x
    tape["normed"] = _affine(x, params["norm"])
    tape["mean"] = tape["normed"].mean(axis=1)
    return _linear(tape["mean"], params["head"], None), tape


def _block(x: np.ndarray, params: Tree, masks: Tree) -> tuple[np.ndarray, Tree]:
    tape: Tree = {"x1": x}
    tape["tokens"] = np.swapaxes(_affine(x, params["affine1"]), 1, 2)
    mixed = _linear(tape["tokens"], params["XPatch"], _mask(masks, "XPatch"))
    tape["mixed"] = np.swapaxes(mixed, 1, 2)
    x = x + params["scale1"]["scale"] * tape["mixed"]
    tape["x2"] = x
    tape["features"] = _affine(x, params["affine2"])
    tape["hidden"] = _linear(tape["features"], params["XChannel1"], _mask(masks, "XChannel1"))
    tape["gelu"] = tape["hidden"] * _normal_cdf(tape["hidden"])
    tape["out"] = _linear(tape["gelu"], params["XChannel2"], _mask(masks, "XChannel2"))
    return x + params["scale2"]["scale"] * tape["out"], tape


def _block_vjp(
    dy: np.ndarray, tape: Tree, params: Tree, masks: Tree, backward: Backward
) -> tuple[np.ndarray, Tree]:
    grads: Tree = {"scale2": {"scale": (dy * tape["out"]).sum(axis=(0, 1))}}

    def linear_vjp(dy: np.ndarray, x: np.ndarray, name: str) -> np.ndarray:
        dx, grads[name] = _linear_vjp(dy, x, params[name], _mask(masks, name), backward)
        return dx

    d_gelu = linear_vjp(dy * params["scale2"]["scale"], tape["gelu"], "XChannel2")
    hidden = tape["hidden"]
    density = np.exp(-hidden * hidden / 2) / math.sqrt(2 * math.pi)
    d_hidden = d_gelu * (_normal_cdf(hidden) + hidden * density)
    d_features = linear_vjp(d_hidden, tape["features"], "XChannel1")
    dx, grads["affine2"] = _affine_vjp(d_features, tape["x2"], params["affine2"])
    dy = dy + dx

    grads["scale1"] = {"scale": (dy * tape["mixed"]).sum(axis=(0, 1))}
    d_mixed = np.swapaxes(dy * params["scale1"]["scale"], 1, 2)
    d_tokens = linear_vjp(d_mixed, tape["tokens"], "XPatch")
    dx, grads["affine1"] = _affine_vjp(np.swapaxes(d_tokens, 1, 2), tape["x1"], params["affine1"])
    return dy + dx, grads


def _linear(x: np.ndarray, params: Tree, mask: np.ndarray | None) -> np.ndarray:
    kernel = params["kernel"] if mask is None else params["kernel"] * mask
    return x @ kernel + params["bias"]


def _linear_vjp(
    dy: np.ndarray, x: np.ndarray, params: Tree, mask: np.ndarray | None, backward: Backward
) -> tuple[np.ndarray, Tree]:
    kernel = params["kernel"]
    mask = np.ones(kernel.shape, bool) if mask is None else mask
    rows_x, rows_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    d_kernel = rows_x.T @ rows_dy
    if backward == "masked":
        d_kernel = d_kernel * mask
    dx = dy @ (kernel if backward == "dense" else kernel * mask).T
    return dx, {"kernel": d_kernel, "bias": rows_dy.sum(axis=0)}


def _affine(x: np.ndarray, params: Tree) -> np.ndarray:
    return x * params["scale"] + params["bias"]


def _affine_vjp(dy: np.ndarray, x: np.ndarray, params: Tree) -> tuple[np.ndarray, Tree]:
    grads = {"scale": (dy * x).sum(axis=(0, 1)), "bias": dy.sum(axis=(0, 1))}
    return dy * params["scale"], grads


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return (1 + erf(x / math.sqrt(2))) / 2


def _mask(masks: Tree, name: str) -> np.ndarray | None:
    return masks.get(name, {}).get("kernel")


def _blocks(params: Tree) -> list[str]:
    return [f"block_{i}" for i in range(sum(name.startswith("block_") for name in params))]


def _float64(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _float64(value) for name, value in tree.items()}
    return np.asarray(tree, np.float64)
