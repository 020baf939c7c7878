"""The page needs nothing else, escapes every text, and has the numbers of the CSV and the JSON."""

import csv
import html.parser
import json
import os
import re
import shutil
from typing import Any

import pytest
import synthetic_study as synthetic

from sparsemlp.reports.report import Picture, build_page, write_report
from sparsemlp.reports.runs_table import COLUMNS, rows, show
from sparsemlp.studies.comparison import compare
from sparsemlp.studies.study import Study, read_study

small = synthetic.small
PICTURE = Picture("curves", 'a "caption" <b>', b"<svg xmlns='http://www.w3.org/2000/svg'/>")
VOID = {"meta", "link", "img", "input"}


class Page(html.parser.HTMLParser):
    """Tags, and the cells of the table of runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.runs: list[dict[str, tuple[str | None, str]]] = []
        self._cell: tuple[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td" and "data-key" in found:
            if found["data-key"] == "name":
                self.runs.append({})
            self._cell = str(found["data-key"]), found.get("data-value")
            self.runs[-1][self._cell[0]] = (self._cell[1], "")

    def handle_data(self, data):
        if self._cell is not None:
            self.runs[-1][self._cell[0]] = (self._cell[1], data)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self._cell = None


def page_of(study: Study, **lacking: str) -> str:
    return build_page(study, [PICTURE], lacking, rows(study), compare(study))


@pytest.fixture(scope="module")
def text(small) -> str:
    return page_of(small, kept_blocks="no <data>")


def test_tags_are_balanced_and_nothing_is_loaded(text):
    page = Page(text)
    assert not page.open
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "srcset", "data"):
            value = attributes.get(name, "data:")
            assert value.startswith(("data:", "#")), (tag, value)
    assert not re.search(r"@import|url\(", text)
    assert "default-src &#39;none&#39;" in text


def test_the_policy_allows_the_own_script_and_style_alone(text):
    (policy,) = [a["content"] for t, a in Page(text).tags if "http-equiv" in a]
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[^']+'", policy)) == 2


def test_page_csv_and_json_agree(small, tmp_path):
    write_report(small, [], {}, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text())
    with (tmp_path / "r_runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    stored = json.loads((tmp_path / "r_runs.json").read_text())
    columns = {column.key: column for column in COLUMNS}
    assert len(page.runs) == len(lines) == len(stored["runs"]) == len(small.runs)
    for cells, line, record in zip(page.runs, lines, stored["runs"], strict=True):
        assert {"test_top1", "loaded_elements", "step_ms"} < set(cells)
        for key, (value, shown) in cells.items():
            assert (value or "") == line[key]
            assert shown == show(columns[key], record[key])
            if isinstance(record[key], float):
                assert float(line[key]) == record[key]


def test_differences_are_in_the_json_with_their_sign(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="32x32", ratio=0.8))
    study = read_study(tmp_path)
    write_report(study, [], {}, tmp_path / "r.html")
    found = json.loads((tmp_path / "r_runs.json").read_text())["comparisons"]
    (record,) = [c for c in found if c["quantity"] == "test_top1" and c["value"] is not None]
    assert record["difference"] == record["value"] - record["published"] > 0
    text = (tmp_path / "r.html").read_text()
    assert f"{100 * record['difference']:+.2f} points" in text
    assert "75.19%" in text


def test_the_first_numbers_are_those_of_the_best_finished_runs(tmp_path):
    for ratio in (0.0, 0.5, 0.8, 0.9):
        block = {"block": "32x32"} if ratio else {}
        run = synthetic.settings(epochs=20, ratio=ratio, **block)
        synthetic.write_run(tmp_path / str(ratio), run)
    # The formulas make it better than the others, but it is not finished.
    better = synthetic.settings(epochs=20, block="32x32", ratio=0.1)
    synthetic.write_run(tmp_path / "better", better, 19)
    study = read_study(tmp_path)
    last = {run.name: 100 * run.records[-1]["test_top1"] for run in study.runs}
    assert last["better"] > last["0.5"] > last["0.8"] > last["0.9"]
    text = page_of(study)
    cards = re.findall(r'class="number">\s*([^<]*?)\s*<.*?>([^<>]+)</', text, flags=re.DOTALL)
    found = {words.strip().split(":")[0]: (number, words) for number, words in cards}
    assert found["runs are finished"][0] == "4 of 5"
    assert found["dense model"][0] == f"{last['0.0']:.2f}%"
    for kind, ratio in (("best masked", "0.5"), ("best at a ratio of 0.8 or more", "0.8")):
        number, words = found[kind]
        assert number == f"{last[ratio]:.2f}%"
        assert f"32x32 at {ratio}" in words


def test_the_dense_model_is_the_one_that_the_best_masked_is_measured_against(tmp_path):
    for epochs in (5, 10, 20):
        dense = synthetic.settings(epochs=epochs, ratio=0.0)
        synthetic.write_run(tmp_path / f"a{epochs}", dense)
    synthetic.write_run(tmp_path / "m", synthetic.settings(epochs=10, block="32x32", ratio=0.5))
    assert "dense model (epochs=10)" in page_of(read_study(tmp_path))
    shutil.rmtree(tmp_path / "m")
    metrics = tmp_path / "a20" / "metrics.jsonl"
    *before, last = metrics.read_text().splitlines()
    better = json.dumps(json.loads(last) | {"test_top1": 0.9})
    metrics.write_text("\n".join([*before, better, ""]))
    assert "dense model (epochs=20)" in page_of(read_study(tmp_path))


def test_a_folder_whose_name_is_no_text_is_in_all_tables(tmp_path):
    synthetic.write_run(tmp_path / os.fsdecode(b"bad\xff name"), synthetic.settings(epochs=1))
    write_report(read_study(tmp_path), [], {}, tmp_path / "report.html")
    for path in (tmp_path / "report.html", tmp_path / "runs.csv"):
        assert "bad\ufffd name" in path.read_text()


def test_a_mask_that_drops_nothing_is_not_the_best_masked(tmp_path):
    """64x64 at 0.1 keeps each layer's only block."""
    for block, ratio in (("64x64", 0.1), ("32x32", 0.5)):
        run = synthetic.settings(epochs=20, block=block, ratio=ratio)
        synthetic.write_run(tmp_path / block, run)
    text = page_of(read_study(tmp_path))
    assert "best masked: 32x32 at 0.5" in text
    assert "ratio of 0.8 or more" not in text


def test_pages_in_one_folder_have_tables_of_their_own(tmp_path):
    synthetic.write_run(tmp_path / "runs" / "a", synthetic.settings(epochs=1))
    study = read_study(tmp_path / "runs")
    for name in ("report.html", "other.html"):
        write_report(study, [], {}, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        *("report.html", "runs.csv", "runs.json"),
        *("other.html", "other_runs.csv", "other_runs.json"),
    }
    assert "other_runs.csv" in (tmp_path / "other.html").read_text()


def test_texts_of_files_are_escaped(small, tmp_path):
    evil = "</pre><script>alert(1)</script>"
    run = synthetic.settings(epochs=2)
    synthetic.write_sweep(tmp_path, [run], evil)
    folder = synthetic.write_run(tmp_path / "runs" / "dense-seed0", run)
    synthetic.write_failure(tmp_path / "runs" / "<i>x", evil)
    environment = synthetic.ENVIRONMENT | {"notice": evil, "commit": evil, "platform": evil}
    (folder / "environment.json").write_text(json.dumps(environment))
    lines = (folder / "metrics.jsonl").read_text().replace(synthetic.SOURCE, evil)
    (folder / "metrics.jsonl").write_text(lines)
    page = Page(page_of(read_study(tmp_path), evil=evil))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "i" not in [tag for tag, _ in page.tags]
    assert not page.open


def test_gaps_are_listed_with_their_reasons(small, text):
    for run in small.runs[-3:]:
        assert run.name in text
    assert "&lt;lower&gt; --lr &amp; go on" in text
    assert "35 finished, 1 unfinished, 1 failed, 1 missing" in text
    assert "no &lt;data&gt;" in text


def test_without_a_grid_nothing_is_said_to_be_missing(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    text = page_of(read_study(tmp_path))
    assert "no run is known to be missing" in text
    assert "All runs are finished." in text
    assert "<pre>" not in text


def test_unreadable_runs_alone_make_a_page(tmp_path):
    folder = synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    (folder / "config.json").write_text("{}")
    text = page_of(read_study(tmp_path))
    assert "unreadable" in text
    assert "0 of 1" in text


def test_what_differs_and_what_is_shared_is_shown(text):
    assert re.search(r"<code>ratio</code></dt><dd>0\.0, 0\.5, 0\.8</dd>", text)
    assert "<dt><code>epochs</code></dt><dd>5</dd>" in text
    assert "synthetic.yaml" in text
    assert "jax 0.12.0.1" in text


def test_only_what_is_equal_is_said_to_be_shared(tmp_path):
    for seed in (0, 1):
        own = synthetic.settings(epochs=1, seed=seed, allow_nan=bool(seed), checkpoint_every=30.0)
        synthetic.write_run(tmp_path / str(seed), own)
    text = page_of(read_study(tmp_path))
    assert "<dt><code>checkpoint_every</code></dt><dd>30.0</dd>" in text
    assert "<dt><code>allow_nan</code></dt>" not in text


def test_the_same_study_is_the_same_page(small, text):
    assert page_of(small, kept_blocks="no <data>") == text


def test_a_run_whose_costs_are_not_known_is_there_and_not_missing(tmp_path):
    run = synthetic.settings(block="32x32", ratio=0.8, epochs=1, dataset="some.npz")
    synthetic.write_run(tmp_path / "a", run)
    study = read_study(tmp_path)
    write_report(study, [], {}, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "the cost models do not know it" in text
    lacking = text.split("No finished run for: ")[1].split("</p>")[0]
    assert "dense (memory movement)" in lacking
    assert "32x32 at 0.8 (memory movement)" not in lacking
    found = json.loads((tmp_path / "r_runs.json").read_text())["comparisons"]
    moved = [c for c in found if (c["block"], c["quantity"]) == ("32x32", "thesis_movement_gb")]
    assert [(c["value"], c["run"]) for c in moved] == [(None, "32x32 at 0.8, masked backward")]
