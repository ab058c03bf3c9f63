"""What a bench report says: ratios, its JSON, and the table for people."""

import json
from pathlib import Path

import pytest

from turbospark_chat.bench.report import Report, Row, read_report, table
from turbospark_chat.errors import BenchError

OWN, PEER = (
    {"name": "turbospark_chat", "arithmetic": "compiled"},
    {"name": "llama.cpp", "arithmetic": "wheel"},
)
RATE = Row("decode", "tok/s", [200, 180, 210], [100, 90, 70])
WAIT = Row("wait", "ms", [20, 25, 10], [40, 50, 60])
ALONE = Row("start", "s", [0.25])


def report(*rows: Row, peer: bool = True) -> Report:
    return Report("m.gguf", 2, [OWN, PEER] if peer else [OWN], list(rows), {"memory": "20 GB/s"})


@pytest.mark.parametrize(
    ("row", "ratio"),
    [
        (RATE, 2.0),  # of 2, 2 and 3: each round compared within itself
        (WAIT, 2.0),  # less is better, so the peer's is above
        (ALONE, None),
        (Row("nothing", "ms", [0.0], [1.0]), None),
        (Row("drift", "tok/s", [100, 10], [50, 5]), 2.0),  # a machine that slows down meets both
    ],
)
def test_a_ratio_says_how_many_times_as_good(row: Row, ratio: float | None) -> None:
    assert row.ratio == ratio


def test_a_report_comes_back_from_its_json(tmp_path: Path) -> None:
    written = report(RATE, WAIT, ALONE)
    (tmp_path / "r.json").write_text(written.to_json())
    assert read_report(tmp_path / "r.json").to_json() == written.to_json()


def test_the_json_has_medians_and_ratios_for_other_programs() -> None:
    first, _, alone = json.loads(report(RATE, WAIT, ALONE).to_json())["rows"]
    assert (first["median"], first["peer_median"], first["ratio"]) == (200, 90, 2.0)
    assert "ratio" not in alone


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 200_000, *(
             '{"format": 1, "model": "", "n_threads": 1, "subjects": [], "notes": {}, "rows": '
             f'[{{"name": {name}, "unit": "s", "own": {own}, "peer": []}}]}}'
             for name, own in (('"a"', "[NaN]"), ('"a"', "5"), ('"a"', '"abc"'), ('"a"', "[]"), ('["a"]', "[1]"))
             ), '{"format": 1, "model": "", "n_threads": 1, "subjects": [], "notes": {}, "rows": '
             '[{"name": "a", "unit": "s", "own": ["z"], "peer": []}]}', '{"format": 1}', '{"format": 99, "rows": []}',
             '{"format": 1, "model": "", "n_threads": 1, "subjects": [], "notes": {}, "rows": [{"name": "a", '
             '"unit": "miles", "own": [1], "peer": [], "is_detail": false}]}']
)  # fmt: skip
def test_what_is_no_report_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(BenchError, match="no report of `ts bench --json`"):
        read_report(tmp_path / "r.json")
    with pytest.raises(BenchError, match="cannot be read"):
        read_report(tmp_path / "missing.json")


def test_the_table_has_ratios_first() -> None:
    assert table(report(RATE, WAIT, ALONE)) == [
        ("", "ratio", "turbospark_chat", "llama.cpp"),
        ("decode", "2.00", "200 tok/s", "90.0 tok/s"),
        ("wait", "2.00", "20.0 ms", "50.0 ms"),
        ("start", "–", "0.25 s", "–"),
    ]


def test_an_earlier_run_is_compared_row_by_row() -> None:
    now, before = report(RATE, ALONE, peer=False), report(Row("start", "s", [0.5]), peer=False)
    rows = [Row(row.name, row.unit, row.own) for row in now.rows]
    assert table(Report("m", 2, [OWN], rows), before) == [
        ("", "to earlier", "turbospark_chat", "earlier"),
        ("decode", "–", "200 tok/s", "–"),
        ("start", "2.00", "0.25 s", "0.50 s"),
    ]


def test_details_are_for_the_json_alone() -> None:
    detail = Row("turn 3", "ms", [1.0], is_detail=True)
    assert [line[0] for line in table(report(RATE, detail))] == ["", "decode"]
    assert json.loads(report(RATE, detail).to_json())["rows"][1]["name"] == "turn 3"
