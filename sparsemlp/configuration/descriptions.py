"""A configuration in a few words."""

from sparsemlp.blocks import format_block, parse_block
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.mask_options import in_words
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import depth_and_plan, rule_options
from sparsemlp.plan import masks_any


def describe_masking(config: Config) -> str:
    """The masking of a configuration in a few words, as `32x32 at 0.8, masked backward`."""
    if config.config is not None:
        masks = masks_any(depth_and_plan(config)[1])
        words = [f"{config.backward} backward", *in_words(config)] if masks else []
        string = config.config.strip()
        return f"{string} {', '.join(words)}" if words else string.removesuffix(";").rstrip()
    chosen = rule_options(config)
    block, layers = format_block(parse_block(chosen["block"])), chosen["mask_layers"]
    where = "" if layers == recipe(config.model).mask_layers else f" in {layers}"
    words = ["dense"]
    if config.ratio:
        words = [f"{block} at {config.ratio:g}{where}, {config.backward} backward"]
        words += in_words(config)
        where = ""
    if config.activation is not None:
        words.append(f"activations {config.activation}{where}")
    if config.gradient is not None:
        words.append(f"gradients {config.gradient} {config.gradient_method or 'magnitude'}{where}")
    return ", ".join(words)


def describe_run(config: Config, source: str) -> str:
    """A run on a data set in a few words, for its pictures."""
    return f"{describe_model(config)}, {source}, seed {config.seed}"


def describe_model(config: Config) -> str:
    """Model and masking in a few words; a model string has its model's name."""
    masking = describe_masking(config)
    return masking if config.config is not None else f"{recipe(config.model).title} {masking}"
