"""Each image that cannot be read is reported once; too many in an epoch are an error."""

import warnings

import pytest

from sparsemlp.data.imagenet.unreadable import Unreadable, UnreadableCount
from sparsemlp.errors import InputError


def images(*names: str) -> tuple[Unreadable, ...]:
    return tuple(Unreadable(name, "truncated") for name in names)


def test_an_image_is_reported_once_with_what_happens_to_it():
    for replaced, what in ((True, "replaced by another image"), (False, "left out")):
        count = UnreadableCount(10, 1.0, replaced=replaced)
        with pytest.warns(UserWarning, match=rf"^a cannot be read \(truncated\): {what}$"):
            count.add(0, images("a"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            count.add(1, images("a"))


@pytest.mark.filterwarnings("ignore")
def test_the_share_is_of_an_epoch():
    count = UnreadableCount(10, 0.2, replaced=True)
    for epoch in range(3):
        count.add(epoch, images("a", "b"))
        assert count.count == 2
    with pytest.raises(
        InputError, match=r"3 of 10 images .* share of 0\.2 that is allowed: a "
    ) as e:
        count.add(2, images("c"))
    assert "b (truncated), c (truncated); repair" in str(e.value)


@pytest.mark.filterwarnings("ignore")
def test_the_error_names_the_first_images_alone():
    with pytest.raises(InputError) as found:
        UnreadableCount(10, 0.0, replaced=False).add(0, images("a", "b", "c", "d"))
    assert "4 of 10" in str(found.value)
    assert "d (" not in str(found.value)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_to_1_is_an_input_error(share: float):
    with pytest.raises(InputError, match="choose it in"):
        UnreadableCount(10, share, replaced=True)


@pytest.mark.filterwarnings("ignore")
def test_an_epoch_that_another_process_began_counts_on():
    count = UnreadableCount(10, 0.2, replaced=True, epoch=1, count=1)
    count.add(1, images("a"))
    assert count.count == 2
    with pytest.raises(InputError, match="3 of 10 images"):
        count.add(1, images("b"))
    later = UnreadableCount(10, 0.2, replaced=True, epoch=1, count=2)
    later.add(2, images("a"))
    assert later.count == 1
