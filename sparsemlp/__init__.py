"""Dynamic block-structured sparsity for MLP-like models in JAX and Flax."""

from sparsemlp.blocks import Block, parse_block
from sparsemlp.convolution import sparse_conv
from sparsemlp.errors import InputError
from sparsemlp.image_modules import SparseConv
from sparsemlp.linear import sparse_linear
from sparsemlp.mask_trees import Masks, check_masks, flatten_masks, select_masks
from sparsemlp.masks import BlockMask, GridMask
from sparsemlp.model_string import parse_model
from sparsemlp.modules import SparseDense
from sparsemlp.plan import Plan
from sparsemlp.planned_kernels import check_plan
from sparsemlp.presets import (
    resmlp_b24,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s12,
    resmlp_s24,
    resmlp_s36,
)
from sparsemlp.resmlp import ResMLP
from sparsemlp.resnet import ResNet9
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    Rule,
)
from sparsemlp.selection import SCORES, select_blocks, select_grid

__all__ = [
    "SCORES",
    "ActivationPooling",
    "ActivationPruning",
    "Block",
    "BlockMask",
    "BlockMasking",
    "GradientPruning",
    "GridMask",
    "InputError",
    "Masks",
    "Plan",
    "ResMLP",
    "ResNet9",
    "Rule",
    "SparseConv",
    "SparseDense",
    "check_masks",
    "check_plan",
    "flatten_masks",
    "parse_block",
    "parse_model",
    "resmlp_b24",
    "resmlp_cifar10",
    "resmlp_imagenet",
    "resmlp_s12",
    "resmlp_s24",
    "resmlp_s36",
    "select_blocks",
    "select_grid",
    "select_masks",
    "sparse_conv",
    "sparse_linear",
]
