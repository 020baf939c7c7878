"""A name opens a folder or a TFDS data set, and both say the same of the same images."""

import shutil
from pathlib import Path

import pytest
from tensorflow_datasets.core import constants
from tiny_images import CLASSES, PER_CLASS, examples, write_folder, write_tfds

from sparsemlp.data.imagenet import ImageSet, open_image_set
from sparsemlp.data.imagenet.image_set import names_folder
from sparsemlp.errors import InputError


def content(images: ImageSet) -> list[list[tuple[bytes, int]]]:
    return [
        sorted(source.read(index) for index in range(len(source)))
        for source in (images.train, images.validation)
    ]


def test_a_folder_and_tfds_give_the_same_images(image_folder: Path, tfds_folder: Path):
    folder = open_image_set(str(image_folder))
    records = open_image_set("tiny_imagenet", tfds_folder)
    assert content(folder) == content(records)
    assert (len(folder.train), len(folder.validation)) == tuple(map(sum, PER_CLASS.values()))
    assert folder.n_classes == records.n_classes == len(CLASSES)
    assert (folder.name, folder.source) == ("tiny", "tiny (folder)")
    assert (records.name, records.source) == ("tiny_imagenet", "tiny_imagenet/1.0.0")
    assert folder.notice is records.notice is None


def test_the_default_folder_of_tfds_is_looked_into(
    tfds_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "DATA_DIR", str(tfds_folder))
    assert len(open_image_set("tiny_imagenet:1.0.0").train) == len(examples("train"))


def test_a_split_called_test_serves_as_validation(tmp_path: Path):
    folder = write_tfds(tmp_path, {"train": examples("train"), "test": examples("val")})
    assert len(open_image_set("tiny_imagenet", folder).validation) == len(examples("val"))


def test_a_data_set_without_validation_is_an_input_error(tmp_path: Path):
    folder = write_tfds(tmp_path, {"train": examples("val")})
    with pytest.raises(InputError, match="has the splits train: it needs train, and validation"):
        open_image_set("tiny_imagenet", folder)


def test_records_that_are_gone_are_an_input_error(tfds_folder: Path, tmp_path: Path):
    shutil.copytree(tfds_folder, tmp_path / "copied")
    for records in tmp_path.rglob("*.array_record*"):
        records.write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be read \(.*prepare it anew") as found:
        open_image_set("tiny_imagenet", tmp_path / "copied")
    assert "\n" not in str(found.value)


def test_a_digest_tells_sets_apart(image_folder: Path, tfds_folder: Path, tmp_path: Path):
    copied = write_folder(tmp_path / "copied")
    assert open_image_set(str(copied)).digest == open_image_set(str(image_folder)).digest
    image = copied / "val" / CLASSES[0] / f"{CLASSES[0]}_0000.JPEG"
    image.rename(image.with_name("other.JPEG"))
    digests = {
        open_image_set(str(copied)).digest,
        open_image_set(str(image_folder)).digest,
        open_image_set("tiny_imagenet", tfds_folder).digest,
    }
    assert len(digests) == 3


def test_a_digest_sees_which_class_a_file_is_in(tmp_path: Path):
    digests = set()
    for name, per_class in (("a", (("1", "2"), ("3",))), ("b", (("1",), ("2", "3")))):
        for split in ("train", "val"):
            for label, files in zip(CLASSES, per_class, strict=False):
                (tmp_path / name / split / label).mkdir(parents=True)
                for file in files:
                    (tmp_path / name / split / label / f"{file}.JPEG").touch()
        digests.add(open_image_set(str(tmp_path / name)).digest)
    assert len(digests) == 2


def test_oddities_of_a_folder_are_noticed_in_a_line(tmp_path: Path):
    folder = write_folder(tmp_path / "odd")
    for image in (folder / "train" / CLASSES[1]).iterdir():
        image.unlink()
    (folder / "val" / CLASSES[0] / "notes.txt").touch()
    (folder / "val" / "loose.JPEG").touch()
    images = open_image_set(str(folder))
    assert images.n_classes == len(CLASSES)
    notice = images.notice or ""
    assert "\n" not in notice
    assert f"1 classes of {folder / 'train'} have no images ({CLASSES[1]})" in notice
    assert f"1 files of {folder / 'val'} are not named as images" in notice
    assert f"1 images or folders of {folder / 'val'} do not lie in CLASS/*.JPEG" in notice


def test_splits_with_other_classes_are_an_input_error(tmp_path: Path):
    folder = write_folder(tmp_path / "other")
    shutil.rmtree(folder / "val" / CLASSES[2])
    with pytest.raises(InputError, match=f"lacks {CLASSES[2]}; both need the same class folders"):
        open_image_set(str(folder))


@pytest.mark.parametrize("name", ["/no/such/folder", "no/such/folder"])
def test_a_path_that_is_no_folder_is_an_input_error(name: str):
    with pytest.raises(InputError, match=rf"{name} is not a folder"):
        open_image_set(name)


def test_a_folder_without_train_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"train cannot be read .*train/CLASS"):
        open_image_set(str(tmp_path))


def test_the_folder_of_tfds_may_be_the_one_at_hand(tfds_folder: Path, monkeypatch):
    monkeypatch.chdir(tfds_folder)
    assert not names_folder("tiny_imagenet")
    assert names_folder("./tiny_imagenet")
    found = open_image_set("tiny_imagenet", Path("."))
    assert found.source == "tiny_imagenet/1.0.0"


def test_a_folder_of_images_may_be_named_barely(image_folder: Path, monkeypatch):
    monkeypatch.chdir(image_folder.parent)
    assert names_folder(image_folder.name)
    assert open_image_set(image_folder.name).source == f"{image_folder.name} (folder)"


def test_images_are_normalised_as_imagenet_is(image_folder):
    images = open_image_set(str(image_folder))
    assert images.mean == (0.485, 0.456, 0.406)
    assert images.std == (0.229, 0.224, 0.225)


def test_a_folder_is_named_however_it_is_reached(image_folder, monkeypatch):
    monkeypatch.chdir(image_folder)
    assert open_image_set("./").name == image_folder.name


def test_of_a_prepared_set_the_split_for_validation_is_taken_in_the_size_asked_for(tmp_path):
    train, validation = examples("train"), examples("val")
    made = {"train": train, "test": validation[:2], "validation": validation}
    found = open_image_set("tiny_imagenet", write_tfds(tmp_path, made), image_size=16)
    assert found.image_shape == (16, 16, 3)
    assert len(found.validation) == len(validation)


def test_another_number_of_images_is_another_set(tmp_path):
    digests = set()
    for left_out in (0, 1):
        train = examples("train")[left_out:]
        made = {"train": train, "validation": examples("val")}
        folder = write_tfds(tmp_path / str(left_out), made)
        digests.add(open_image_set("tiny_imagenet", folder).digest)
    assert len(digests) == 2
