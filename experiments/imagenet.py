r"""Trains a block-masked ResMLP on ImageNet, or on any large set of labelled images.

    python experiments/imagenet.py --block=32x32 --ratio=0.8

trains the model of Bespalov 2025 (15,607,912 parameters, patches of 14 pixels) for 90 epochs on
`imagenet2012`, prepared by TensorFlow Datasets in array_record files, with 80% of the 32x32 blocks
of its token-mixing and channel linears dropped at every step.

    python experiments/imagenet.py --dataset=FOLDER --model=resmlp_s12 --block=32x32 --ratio=0.8 \
        --mask-layers=XChannel

reads FOLDER/train/CLASS/*.JPEG and FOLDER/val/CLASS/*.JPEG, and trains ResMLP-S12; its 196 tokens
are no multiple of 32, so its channel linears alone are masked. Worker processes decode, crop and
flip the images while the devices compute; every batch is shared by all devices (--devices).
Everything goes to a new folder under runs/; a run that was interrupted goes on with --resume.
"""

import sys

from sparsemlp.configuration.config import Config
from sparsemlp.runs.command_line import main

if __name__ == "__main__":
    sys.exit(main(__doc__, defaults=Config(model="resmlp_imagenet", dataset="imagenet2012")))
