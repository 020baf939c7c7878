"""A TFDS data set gives the bytes it was made of, in any order, in any process."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from tiny_images import encoded, examples, pixels, write_tfds

from sparsemlp.data.imagenet.records import RecordSource, prepared_builder
from sparsemlp.errors import InputError


@pytest.fixture(scope="module")
def directory(tfds_folder: Path) -> Path:
    return Path(prepared_builder("tiny_imagenet", tfds_folder).data_dir)


def test_every_image_is_read_as_it_was_written(directory: Path):
    source = RecordSource(directory, "train")
    read = {source.read(index) for index in range(len(source))}
    assert read == {(example["image"], example["label"]) for example in examples("train")}
    assert len(source) == len(examples("train"))


def test_a_worker_reads_the_same(directory: Path):
    source = RecordSource(directory, "validation")
    sent = pickle.loads(pickle.dumps(source))
    assert [sent.read(i) for i in (7, 0)] == [source.read(i) for i in (7, 0)]


def test_a_record_is_named_by_its_place_and_file(directory: Path):
    source = RecordSource(directory, "train")
    (place,) = {i for i in range(len(source)) if source.name(i).endswith("(n02_0003.JPEG)")}
    assert source.read(place)[1] == 1
    assert source.name(place).startswith(f"{directory}, train record {place} (")
    assert source.name(10**6) == f"{directory}, train record 1000000"


def test_a_data_set_that_is_not_prepared_is_an_input_error(tmp_path: Path):
    with pytest.raises(
        InputError, match=r"imagenet2012 is not prepared in .*array_record"
    ) as found:
        prepared_builder("imagenet2012", tmp_path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["images.NPZ", "images.npz/", "", "a b", "two/of/them"])
def test_a_name_that_no_data_set_can_have_is_said_to_be_none(name: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"is no folder, no .npz file and no name of a TFDS"):
        prepared_builder(name, tmp_path)


def test_files_without_random_access_are_an_input_error(tfds_folder: Path, tmp_path: Path):
    copied = copy_info(tfds_folder, tmp_path, fileFormat="tfrecord")
    with pytest.raises(InputError, match=r"tfrecord files.*tfds convert_format --dataset_ver"):
        prepared_builder("tiny_imagenet", copied)


def test_a_damaged_description_is_an_input_error(tfds_folder: Path, tmp_path: Path):
    copied = copy_info(tfds_folder, tmp_path)
    (copied / "tiny_imagenet/1.0.0/features.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read \(.*\): prepare it anew"):
        prepared_builder("tiny_imagenet", copied)


def test_images_without_a_class_are_an_input_error(tmp_path: Path):
    example = {"image": encoded(pixels(0)), "label": "a cat", "file_name": "x"}
    folder = write_tfds(tmp_path, {"train": [example]}, label=tfds.features.Text())
    with pytest.raises(InputError, match=r"no feature 'label' of the kind ClassLabel but file"):
        prepared_builder("tiny_imagenet", folder)


def copy_info(source: Path, target: Path, **changes: Any) -> Path:
    """Copies the description of a data set, without its records."""
    folder = target / "tiny_imagenet/1.0.0"
    folder.mkdir(parents=True)
    for name in ("dataset_info.json", "features.json"):
        (folder / name).write_text((source / "tiny_imagenet/1.0.0" / name).read_text())
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | changes))
    return target
