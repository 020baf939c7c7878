"""What the device at hand reaches."""

from tuning.ceilings import measured_ceilings


def test_the_ceilings_are_numbers_for_each_dtype() -> None:
    found = measured_ceilings(is_tiny=True)
    assert found.bytes_per_second > 0
    assert set(found.flops) == {"bfloat16", "float32"}
