"""The program that writes the cost tables: their cells are the models', bad input is named."""

import csv
from pathlib import Path
from typing import Any

import costs as program
import pytest

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Run, Shapes, loaded_elements, movement_bytes


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_the_default_grid_is_the_thesis_and_its_cells_are_unrounded(tmp_path, capsys):
    program.count_costs(program.Costs(out=tmp_path / "a" / "b"))
    tables = {path.stem: read(path) for path in (tmp_path / "a" / "b").iterdir()}
    assert set(tables) == set(program.QUANTITIES)
    for rows in tables.values():
        assert rows[0] == ["Block_Size", *(f"0.{n}" for n in range(1, 10))]
        assert [row[0] for row in rows[1:]] == list(program.THESIS_BLOCKS)
        assert len(rows) == 20
    row = program.THESIS_BLOCKS.index("32x32") + 1
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    assert int(tables["loaded_elements"][row][8]) == loaded_elements(Shapes(), masking, Run())
    moved = movement_bytes(Shapes(), masking, Run(images_per_epoch=50_000)) / 2**30
    assert float(tables["memory_movement_corrected"][row][8]) == moved
    assert "memory_movement" in capsys.readouterr().out


def test_a_model_string_has_its_own_row_for_each_quantity(tmp_path):
    text = "ResMLP12 @ XPatch = masked 0.5 (2, 2); XChannel2 = masked 0.3 (1, 1);"
    program.count_costs(program.Costs(out=tmp_path, config=text, epochs=1, images=128))
    heading, *rows = read(tmp_path / "costs.csv")
    assert heading == ["quantity", "unit", "dense", "masked", "share"]
    assert [row[0] for row in rows] == list(program.QUANTITIES)
    masking = {"XPatch": ((2, 2), 0.5), "XChannel2": ((1, 1), 0.3)}
    run = Run(steps_per_epoch=1, epochs=1)
    assert int(rows[0][3]) == loaded_elements(Shapes(depth=12), masking, run)
    for _, _, dense, masked, share in rows:
        assert float(share) == float(masked) / float(dense) <= 1


def test_other_models_have_their_own_sizes_and_runs(tmp_path):
    options = program.Costs(
        out=tmp_path,
        model="resmlp_s12",
        mask_layers="XChannel",
        blocks=("64x64",),
        ratios=(0.5,),
    )
    program.count_costs(options)
    run = Run(batch_size=64, steps_per_epoch=20_019, epochs=90)
    masking = dict.fromkeys(KINDS[1:], ((64, 64), 0.5))
    wanted = loaded_elements(Shapes(224, 16, 3, 384, 12, 4, 1000), masking, run)
    assert read(tmp_path / "loaded_elements.csv")[1] == ["64x64", str(wanted)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "vgg"}, "--model=vgg is unknown: choose one of resmlp_cifar10"),
        ({"model": "resmlp_s12"}, "block 1x8 does not divide XPatch"),
        ({"mask_layers": "XPatch,Head"}, "names 'Head': choose from XPatch"),
        ({"blocks": ("3x3", "32x48")}, "XPatch"),
        ({"blocks": ()}, "at least one each"),
        ({"ratios": (1.0,)}, "ratio 1.0 is outside"),
        ({"ratios": (0.5, 0.5)}, "--ratios names one twice"),
        ({"blocks": ("2x2", "4x4", "2x2")}, "--blocks names one twice"),
        ({"image_size": 30}, "--image-size=30 is no multiple of the 4 pixels"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"line_bytes": 0}, "line_bytes is 0"),
        ({"config": "ResMLP5 @ XPatch = sparse 0.5 (2, 2);"}, "masks nothing: give a kind a mask"),
        ({"config": "ResMLP5 @ XPatch = masked 0.5 (3, 3);"}, "choose another block in --config"),
        (
            {"config": "ResMLP5 @ XPatch = masked 0.5 (2, 2);", "mask_layers": "Foo"},
            "--config and --mask-layers exclude each other",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_bad_input_is_named_and_nothing_is_written(changes: dict[str, Any], words, tmp_path):
    with pytest.raises(InputError) as caught:
        program.count_costs(program.Costs(out=tmp_path / "costs", **changes))
    assert words in str(caught.value)
    assert not list(tmp_path.rglob("*.csv"))


def test_ratios_of_many_digits_have_headings_of_their_own(tmp_path):
    ratios = (0.8, 0.123456789, 0.1234567)
    program.count_costs(program.Costs(out=tmp_path, ratios=ratios, blocks=("1x1",)))
    heading = ["Block_Size", "0.8", "0.123456789", "0.1234567"]
    assert read(tmp_path / "flops.csv")[0] == heading


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "costs").write_text("")
    with pytest.raises(InputError, match="is no folder to write to"):
        program.count_costs(program.Costs(out=tmp_path / "costs"))
