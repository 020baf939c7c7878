"""Whether the device of this process still answers, and what is said if not, or out of memory."""

import weakref

import jax
import jax.numpy as jnp
import pytest

from sparsemlp import device
from sparsemlp.device import answering_device, device_answers, training_memory
from sparsemlp.errors import (
    DeviceLostError,
    InputError,
    NotFiniteError,
    OutOfMemoryError,
    SaveError,
    WorkerError,
)


def test_a_device_answers_until_it_computes_nothing_any_more(monkeypatch):
    assert device_answers()

    def lost(_):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(jax, "block_until_ready", lost)
    assert not device_answers()


def test_a_lost_device_is_one_line_with_what_it_said_last(monkeypatch, capsys):
    monkeypatch.setattr(device, "device_answers", lambda: False)
    said = jax.errors.JaxRuntimeError("INTERNAL: an illegal\n memory access")
    with pytest.raises(DeviceLostError) as caught, answering_device("do it again"):
        raise said
    assert str(caught.value) == (
        "the device answers no more after JaxRuntimeError: INTERNAL: an illegal memory access; "
        "do it again"
    )
    assert "an illegal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (ValueError("x"), True),
        (InputError("y is bad"), False),
        (SaveError("the disk is full"), False),
        (NotFiniteError("NaN"), False),
        (WorkerError("killed"), False),
    ],
)
def test_an_error_that_is_not_the_devices_stays_what_it_is(monkeypatch, error, answers):
    monkeypatch.setattr(device, "device_answers", lambda: answers)
    with pytest.raises(type(error)) as caught, answering_device("do it again"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nA table"
            ),
            "the memory is full: Out of memory allocating 8 bytes; choose a smaller --batch-size",
        ),
        (MemoryError("Unable to allocate 8 GiB"), "the memory is full: Unable to allocate 8 GiB;"),
        (MemoryError(), "the memory is full: out of memory;"),
    ],
    ids=["jax", "numpy", "python"],
)
def test_a_full_memory_is_one_line_with_what_needs_less(error, said):
    with pytest.raises(OutOfMemoryError) as caught, training_memory():
        raise error
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert "--remat" in str(caught.value)


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("INTERNAL: a fault"), ValueError("x")]
)
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, training_memory():
        raise error
    assert caught.value is error


def test_what_failed_for_lack_of_memory_holds_none():
    held: list[weakref.ref[jax.Array]] = []

    def fail() -> None:
        array = jnp.ones(3)
        held.append(weakref.ref(array))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with pytest.raises(OutOfMemoryError) as caught, training_memory():
        fail()
    assert caught.value.__cause__ is not None
    assert held[0]() is None
