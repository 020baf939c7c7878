"""Trains a block-masked ResMLP on CIFAR-10, the main experiment of Bespalov 2025.

    python experiments/cifar10.py --block=32x32 --ratio=0.8

trains the model of 192,074 parameters for 200 epochs, 10 of them dense, then with 80% of the
32x32 blocks of its token-mixing and channel linears dropped at every step. Without CIFAR-10 and
without a network it trains on scikit-learn's digits instead and says so. Everything goes to a new
folder under runs/; a run that was interrupted goes on with --resume.

    python experiments/cifar10.py --model=resnet9 --gradient=2:4 --gradient-method=rescaled

trains the ResNet-9 of McDanel, Dinh and Magallanes by their recipe, 150 epochs with the output
gradients pruned; that long it is for a GPU, on 2 cores take --width=16 and fewer --epochs.

Measured on 2 cores of an Intel Xeon with JAX 0.12.0.1, CIFAR-10 as a JPEG transcode: about 37 s a
dense epoch with evaluation and 9 s a masked one; after 200 epochs, seed 0, 68.0% test top-1.
"""

import sys

from sparsemlp.runs.command_line import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
