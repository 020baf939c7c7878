"""Bytes of collectives are read from the text of a compiled program."""

import pytest
from benchmarks import exchange as benchmark_exchange

from sparsemlp import InputError

PROGRAM = """
  %all-reduce.1 = f32[4,8]{1,0} all-reduce(f32[4,8]{1,0} %x), channel_id=1
  %start = (f32[16]{0}, bf16[2,3]{1,0}) all-reduce-start(f32[16]{0} %a, bf16[2,3]{1,0} %b)
  %done = (f32[16]{0}, bf16[2,3]{1,0}) all-reduce-done((f32[16]{0}, bf16[2,3]{1,0}) %start)
  ROOT %permuted = s32[5]{0} collective-permute(s32[5]{0} %c)
  %scalar = f32[] all-reduce(f32[] %loss), to_apply=%all-reduce-sum
  %fusion = f32[4,8]{1,0} fusion(f32[4,8]{1,0} %all-reduce.1), calls=%x
"""


def test_every_collective_counts_once():
    expected = 4 * 8 * 4 + 16 * 4 + 2 * 3 * 2 + 5 * 4 + 4
    assert benchmark_exchange.collective_bytes(PROGRAM) == expected
    assert benchmark_exchange.collective_bytes("%a = f32[9] add(f32[9] %b)") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 1}, "--devices=1 exchange nothing"),
        ({"devices": 1000}, "JAX_NUM_CPU_DEVICES=1000"),
        ({"images": 0}, "--images=0 must be at least 1"),
        ({"ratio": 0.0}, r"--ratio=0 is not in \(0, 1\)"),
        ({"model": "vgg"}, "--model=vgg is unknown: choose one of resmlp_cifar10"),
    ],
)
def test_bad_options_name_the_way_out(options, message):
    with pytest.raises(InputError, match=message):
        benchmark_exchange.measure_exchange(benchmark_exchange.Exchange(**options))
