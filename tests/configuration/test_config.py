"""What names a data set holds wherever the run goes on."""

from pathlib import Path

import pytest

from sparsemlp.configuration.config import Config, is_file, located, with_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images called `images` in the working directory."""
    (tmp_path / "images" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["cifar10", "digits", "imagenet2012", "auto"])
def test_a_name_stays_what_it_is(folder, name):
    assert located(name) == name
    assert not is_file(name)


@pytest.mark.parametrize("name", ["images", "some.npz"])
def test_a_path_becomes_one_from_the_root(folder, name):
    assert located(name) == str(folder / name)
    assert is_file(located(name))


def test_a_folder_called_like_a_data_set_does_not_hide_it(folder):
    (folder / "cifar10").mkdir()
    assert located("cifar10") == "cifar10"


def test_auto_becomes_what_was_found_and_the_folder_of_data_absolute(folder):
    found = with_data(Config(data_dir=Path("data")), "digits")
    assert (found.dataset, found.data_dir) == ("digits", folder / "data")
    assert with_data(Config(dataset="images"), "images").dataset == str(folder / "images")
    assert with_data(Config(data_dir=Path("~/data")), "digits").data_dir == Path.home() / "data"
