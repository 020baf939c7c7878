"""A checksum is of names and contents of the files of the chosen kinds."""

from tuning.checksum import checksum


def test_it_changes_with_names_contents_and_kinds_and_with_nothing_else(tmp_path):
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "kernel.py"
    path.write_text("x = 1")
    before = checksum(tmp_path)
    (tmp_path / "notes.txt").write_text("fast")
    assert checksum(tmp_path) == before
    assert checksum(tmp_path, kinds=("*.py", "*.txt")) != before
    assert checksum(tmp_path, tmp_path) != before
    path.write_text("x = 2")
    changed = checksum(tmp_path)
    path.rename(tmp_path / "inside" / "other.py")
    assert len({before, changed, checksum(tmp_path)}) == 3
