"""Published sizes of ResMLP, callable without arguments; keywords change any field."""

from typing import Any

from sparsemlp.resmlp import ResMLP


def resmlp_cifar10(**changes: Any) -> ResMLP:
    """The CIFAR-10 model of Bespalov 2025: 192,074 parameters, 184,320 of them maskable."""
    return _preset(changes, image_size=32, patch_size=4, dim=64, depth=5, n_classes=10)


def resmlp_imagenet(**changes: Any) -> ResMLP:
    """The ImageNet model of Bespalov 2025: 15,607,912 parameters."""
    return _preset(changes, image_size=224, patch_size=14, dim=384, depth=12, n_classes=1000)


def resmlp_s12(**changes: Any) -> ResMLP:
    """ResMLP-S12/16 (arXiv 2105.03404): 15,350,872 parameters."""
    return _preset(changes, image_size=224, patch_size=16, dim=384, depth=12, n_classes=1000)


def resmlp_s24(**changes: Any) -> ResMLP:
    """ResMLP-S24/16 (arXiv 2105.03404): 30,020,680 parameters."""
    return _preset(changes, image_size=224, patch_size=16, dim=384, depth=24, n_classes=1000)


def resmlp_s36(**changes: Any) -> ResMLP:
    """ResMLP-S36/16 (arXiv 2105.03404): 44,690,488 parameters."""
    return _preset(changes, image_size=224, patch_size=16, dim=384, depth=36, n_classes=1000)


def resmlp_b24(**changes: Any) -> ResMLP:
    """ResMLP-B24/8 (arXiv 2105.03404): 129,138,280 parameters."""
    return _preset(changes, image_size=224, patch_size=8, dim=768, depth=24, n_classes=1000)


def _preset(changes: dict[str, Any], **published: Any) -> ResMLP:
    return ResMLP(**{**published, **changes})
