"""Measures speed and memory, each contender against a named baseline in the same run.

    python experiments/benchmark.py step

prints the median time of a CIFAR-10 training step (batch 128, augmentation and optimizer
included): dense, masked with each engine that runs here, with the options of every --more, and, if
PyTorch is installed, the thesis' way in PyTorch. About two minutes on 2 cores.

    python experiments/benchmark.py linear

prints, for one masked linear layer of 8192 rows, how much faster than the dense products of XLA
its forward product, its two gradients, and all of them together are, what share of the machine's
measured peak the arithmetic of the kept blocks reaches, and what the selection of the blocks costs
beside it. About three minutes on 2 cores.

    python experiments/benchmark.py gradient

prints, for one unmasked layer whose output gradient is pruned n of m for dX, what the pruning by
XLA takes, what it takes with the product, and what the engine takes for both; then forward and
backward with each of them, against the dense layer. About three minutes on 2 cores.

    python experiments/benchmark.py convolution

prints how much faster than XLA's dense ones the products of a masked convolution are. About two
minutes on 2 cores.

    python experiments/benchmark.py memory --model=resmlp_imagenet --batch-size=64

prints what a training step keeps for its backward pass and the memory that XLA plans for it: dense
and masked with --remat, --accumulate, --ema and --precision=bfloat16 of the training program, then
with each rule for activations and gradients, and with all of them (`--show` chooses one table). It
compiles, and runs nothing.

    JAX_NUM_CPU_DEVICES=4 python experiments/benchmark.py exchange --devices=4

prints the bytes that devices exchange for the gradients of a step, from the compiled program:
dense, and masked with each backward. It runs nothing.

    python experiments/benchmark.py population

prints the median time of a training step of nine runs, one for each ratio, trained together in one
program (`reference`), and one after another with the engines `reference` and `auto`. It is meant
for a GPU.

    python experiments/benchmark.py input

prints how many images a second the input pipeline of large image sets reads, decodes, crops and
resizes, from JPEG files of 500x375 that it makes: by one core, and by worker processes. It needs
grain. Half a minute on 2 cores.

    python experiments/benchmark.py gpu --out=DIR

checks every engine for GPUs on the device at hand, then times products, selection and training
steps, most telling first, for 8 minutes, and writes records and a table in Markdown into DIR. The
same command goes on where it was stopped; `--smoke` tries it without a GPU.

    python experiments/benchmark.py gpu-table DIR
    python experiments/benchmark.py gpu-roofline DIR --out=roofline.png

print its tables again, for README, and draw its products under the roof that was measured beside
them. Results of a trial (`--smoke`) are no measurements and are refused.

    python experiments/benchmark.py selection --model=resmlp_cifar10

prints what the masks of a step cost beside its loss and gradients: the scores of all blocks, the
whole selection, and the lists of kept blocks that kernels for a GPU take.

Contenders take turns, so that a busy machine slows all of them alike; the ratios mean something,
the milliseconds belong to the moment.
"""

import sys

from benchmarks.convolution import measure_convolution
from benchmarks.exchange import measure_exchange
from benchmarks.gradient import measure_gradient
from benchmarks.input import measure_input
from benchmarks.linear import measure_linear
from benchmarks.memory import measure_memory
from benchmarks.population import measure_population
from benchmarks.selection import measure_selection
from benchmarks.step import measure_step
from gpu.benchmark import measure_gpu
from gpu.figures import draw_roofline
from gpu.report import print_tables

from sparsemlp.exit_codes import exit_code
from sparsemlp.options import subcommands


def main() -> int:
    """Runs the benchmark that the command line names."""
    benchmarks = {
        "step": measure_step,
        "linear": measure_linear,
        "gradient": measure_gradient,
        "convolution": measure_convolution,
        "memory": measure_memory,
        "exchange": measure_exchange,
        "population": measure_population,
        "input": measure_input,
        "gpu": measure_gpu,
        "gpu-table": print_tables,
        "gpu-roofline": draw_roofline,
        "selection": measure_selection,
    }
    return exit_code(lambda: subcommands(benchmarks, description=__doc__))


if __name__ == "__main__":
    sys.exit(main())
