"""Which files of a folder are images, in which order and of which class."""

import os
import pickle
from pathlib import Path

import pytest

from sparsemlp.data.imagenet.folder import check_same_classes, find_images
from sparsemlp.errors import InputError


def make(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    return root


def test_images_come_in_the_order_of_their_paths_and_labels_count_the_folders(tmp_path: Path):
    make(tmp_path, "b/2.JPEG", "b/1.jpg", "a/x.png", "c/3.Jpeg")
    source = find_images(tmp_path)
    assert source.classes == ("a", "b", "c")
    found = [source.read(index) for index in range(len(source))]
    assert found == [(b"a/x.png", 0), (b"b/1.jpg", 1), (b"b/2.JPEG", 1), (b"c/3.Jpeg", 2)]
    assert [source.name(index) for index in (0, 3)] == [
        str(tmp_path / "a/x.png"),
        str(tmp_path / "c/3.Jpeg"),
    ]


def test_a_worker_gets_the_same_images(tmp_path: Path):
    source = find_images(make(tmp_path, "a/1.JPEG", "b/2.JPEG"))
    sent = pickle.loads(pickle.dumps(source))
    assert [sent.read(i) for i in range(2)] == [source.read(i) for i in range(2)]
    assert sent.content == source.content


@pytest.mark.parametrize("empty", ["a", "b", "c"])
def test_an_empty_class_folder_keeps_its_label(tmp_path: Path, empty: str):
    for name in "abc":
        (tmp_path / name).mkdir()
        if name != empty:
            make(tmp_path, f"{name}/1.JPEG")
    source = find_images(tmp_path)
    assert source.classes == ("a", "b", "c")
    assert source.empty_classes == (empty,)
    assert [source.read(i)[1] for i in range(2)] == ["abc".index(n) for n in "abc" if n != empty]


def test_other_files_are_left_out_and_counted(tmp_path: Path):
    make(tmp_path, "a/1.JPEG", "a/notes.txt", "a/Thumbs.db", "a/.hidden.JPEG", ".git/2.JPEG")
    make(tmp_path, "LICENSE", "a/deeper/3.JPEG")
    source = find_images(tmp_path)
    assert (source.classes, len(source), source.n_ignored) == (("a",), 1, 2)
    assert source.n_elsewhere == 1


def test_images_beside_class_folders_and_folders_in_them_are_counted(tmp_path: Path):
    make(tmp_path, "a/1.JPEG", "a/deeper/2.JPEG", "loose.JPEG", "LICENSE", "b.JPEG/3.JPEG")
    source = find_images(tmp_path)
    assert (source.classes, len(source), source.n_elsewhere) == (("a", "b.JPEG"), 2, 2)


def test_a_name_that_is_no_text_can_be_read(tmp_path: Path):
    (tmp_path / "a").mkdir()
    path = os.path.join(os.fsencode(tmp_path), b"a", b"\xff.JPEG")
    try:
        with open(path, "wb") as file:
            file.write(b"content")
    except OSError:
        pytest.skip("this file system has names of text alone")
    assert find_images(tmp_path).read(0) == (b"content", 0)


def test_a_named_pipe_is_not_waited_for(tmp_path: Path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.JPEG")
    with pytest.raises(OSError, match=r"no regular file: .*1\.JPEG"):
        find_images(tmp_path).read(0)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("file.txt",), "no class folders"),
        (("1.JPEG", "2.JPEG"), "holds images, but no class folders: sort"),
        (("a/notes.txt",), "1 class folders and no images"),
    ],
)
def test_a_folder_without_images_is_an_input_error(
    tmp_path: Path, paths: tuple[str, ...], message: str
):
    with pytest.raises(InputError, match=message):
        find_images(make(tmp_path, *paths))


def test_a_missing_folder_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"none cannot be read \(No such file"):
        find_images(tmp_path / "none")


def test_both_splits_need_the_same_classes(tmp_path: Path):
    train = find_images(make(tmp_path / "train", *(f"{name}/1.JPEG" for name in "abcdef")))
    validation = find_images(make(tmp_path / "val", "a/1.JPEG"))
    check_same_classes(train, train)
    with pytest.raises(InputError, match=r"val has 1 .* it lacks b, c, d and 2 more"):
        check_same_classes(train, validation)
    with pytest.raises(InputError, match=r"val has 1 classes and .*train 6"):
        check_same_classes(validation, train)
