"""ResMLP with block masks as Bespalov 2025 runs it, in PyTorch: the peer of the benchmarks.

At every forward pass the norm of each block is taken, the blocks at or above the k-th largest are
kept, and the weight is multiplied by the mask elementwise before a dense product. Importing this
module needs PyTorch (the extra `peers`).
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

torch: Any = importlib.import_module("torch")


class MaskedLinear(torch.nn.Linear):
    """A linear layer whose weight `[out, in]` is masked anew at every forward pass.

    Args:
      in_features: number of inputs.
      out_features: number of outputs.
      block: `(rows, cols)`, rows over outputs.
      ratio: fraction of blocks to drop; 0 multiplies by no mask.
    """

    def __init__(
        self, in_features: int, out_features: int, block: tuple[int, int], ratio: float
    ) -> None:
        super().__init__(in_features, out_features)
        self.block = block
        self.ratio = ratio

    def forward(self, x: Any) -> Any:
        """Maps `[..., in]` to `[..., out]`."""
        if self.ratio == 0:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        rows, cols = self.block
        down, across = self.weight.shape[0] // rows, self.weight.shape[1] // cols
        with torch.no_grad():
            blocks = self.weight.reshape(down, rows, across, cols)
            norms = torch.linalg.vector_norm(blocks, dim=(1, 3))
            k = math.ceil(norms.numel() * (1 - self.ratio))
            threshold = norms.flatten().topk(k).values[-1]
            mask = (norms >= threshold).to(self.weight.dtype)
            mask = mask.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
        return torch.nn.functional.linear(x, self.weight * mask, self.bias)


class Affine(torch.nn.Module):
    """`scale * x + bias`, a scale and a bias a channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(dim))
        self.bias = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x: Any) -> Any:
        """Maps `[..., dim]` to the same shape."""
        return torch.addcmul(self.bias, self.scale, x)


class Block(torch.nn.Module):
    """One residual block."""

    def __init__(self, tokens: int, dim: int, block: tuple[int, int], ratio: float) -> None:
        super().__init__()
        self.affine1, self.affine2 = Affine(dim), Affine(dim)
        self.patch = MaskedLinear(tokens, tokens, block, ratio)
        self.channel1 = MaskedLinear(dim, 4 * dim, block, ratio)
        self.channel2 = MaskedLinear(4 * dim, dim, block, ratio)
        self.scale1 = torch.nn.Parameter(torch.full((dim,), 0.1))
        self.scale2 = torch.nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: Any) -> Any:
        """Maps `[batch, tokens, dim]` to the same shape."""
        mixed = self.patch(self.affine1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.scale1 * mixed
        hidden = torch.nn.functional.gelu(self.channel1(self.affine2(x)))
        return x + self.scale2 * self.channel2(hidden)


class ResMLP(torch.nn.Module):
    """The CIFAR-10 model: patch 4 on 32x32, dim 64, depth 5."""

    def __init__(self, block: tuple[int, int], ratio: float) -> None:
        super().__init__()
        self.embed = torch.nn.Conv2d(3, 64, 4, 4)
        self.blocks = torch.nn.Sequential(*(Block(64, 64, block, ratio) for _ in range(5)))
        self.norm = Affine(64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, images: Any) -> Any:
        """Maps `[batch, 3, 32, 32]` to logits `[batch, 10]`."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def training_steps(
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    block: tuple[int, int],
    ratio: float,
    device: str = "cpu",
) -> Callable[[int], None]:
    """A function that trains for so many steps.

    A step draws a batch, normalises it, mixes it (mixup), and makes one step of Adam with L2.
    Crop and flip are left out, in PyTorch's favour.

    Args:
      images: uint8 `[n, 32, 32, 3]`.
      labels: int32 `[n]`.
      batch_size: images in a step.
      block: block of the mask, rows over outputs.
      ratio: fraction of blocks to drop; 0 is dense.
      device: where it trains, with the images there from the start; products on a GPU take TF32,
        as XLA's do.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    model = ResMLP(block, ratio).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()
    targets = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), 10).float().to(device)

    def train(n_steps: int) -> None:
        for _ in range(n_steps):
            chosen = torch.randint(len(pixels), (batch_size,), device=device)
            x = pixels[chosen].float().sub_(120.0).div_(63.0)
            lam = float(np.random.default_rng().beta(0.2, 0.2))
            x = lam * x + (1 - lam) * x.flip(0)
            y = lam * targets[chosen] + (1 - lam) * targets[chosen].flip(0)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize(device)

    return train
