"""Whether the device of this process still answers."""

import jax

from sparsemlp.device import device_answers


def test_a_device_answers_until_it_computes_nothing_any_more(monkeypatch):
    assert device_answers()

    def lost(_):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(jax, "block_until_ready", lost)
    assert not device_answers()
