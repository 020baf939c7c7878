"""What README, and that of the programs, show works as it is shown."""

import contextlib
import functools
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from child import run_in_child
from readme import code_blocks

from sparsemlp import BlockMasking, ResMLP, select_masks

ROOT = Path(__file__).parents[1]
TEXTS = [(ROOT / name).read_text() for name in ("README.md", "experiments/README.md")]


def _commands() -> list[str]:
    blocks = [block for text in TEXTS for block in code_blocks(text, "bash")]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("python experiments/")]


@pytest.mark.parametrize("example", code_blocks(TEXTS[0], "python"))
def test_the_examples_run(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def run_on_two_devices() -> None:
    """The gradients of BUILD's example, and who computed them."""
    plan = {"*/XChannel*/kernel": BlockMasking((32, 32), 0.8)}
    model = ResMLP(image_size=8, dim=32, depth=1, n_classes=4, plan=plan, engine="reference")
    images, labels = jax.random.normal(jax.random.key(0), (4, 8, 8, 3)), jnp.arange(4)
    params = model.init(jax.random.key(1), images)["params"]
    masks = select_masks(params, plan)
    names: dict[str, Any] = {"functools": functools, "jax": jax, "optax": optax, "model": model}
    (example,) = (b for b in code_blocks((ROOT / "BUILD.md").read_text(), "python") if "mesh" in b)
    exec(compile(example, "BUILD.md", "exec"), names)
    assert jax.device_count() == 2
    found = names["loss_and_gradients"](params, masks, images, labels)

    def loss(params: Any) -> Any:
        logits: Any = model.apply({"params": params, "masks": masks}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    expected = jax.jit(jax.value_and_grad(loss))(params)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found, expected
    )


def test_the_example_of_several_devices_gives_the_gradients_of_one() -> None:
    run_in_child("test_readme", "run_on_two_devices", n_devices=2)


@pytest.mark.slow
def test_the_first_command_trains(tmp_path: Path) -> None:
    first = next(command for command in _commands() if "--epochs=2" in command)
    words = [sys.executable, *shlex.split(first)[1:], "--dataset=digits", f"--out={tmp_path}/run"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()


@functools.cache
def _help(script: str, *subcommand: str) -> str:
    """What a program prints; in this process, which has imported most of it already."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, *subcommand, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / script), run_name="__main__")
    assert not ended.value.code
    return printed.getvalue()


@pytest.mark.parametrize("command", _commands())
def test_the_other_commands_use_options_that_exist(command: str) -> None:
    script, *words = shlex.split(command)[1:]
    assert (ROOT / script).is_file()
    text = _help(script, *words[: words[:1] == ["step"]])
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in text


def _outside_code(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _outside_code(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = [ROOT / "README.md", ROOT / "BUILD.md", *sorted((ROOT / "experiments").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^()]+)\)", _outside_code(page)):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link
