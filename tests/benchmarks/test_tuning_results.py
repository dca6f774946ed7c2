"""A result file keeps what was measured, and refuses what does not belong to it."""

from pathlib import Path

import pytest

from benchmarks.tuning_results import Results

SETTINGS = {"width": 8}


def test_what_was_added_is_there_when_opened_again(tmp_path: Path) -> None:
    Results(tmp_path / "new" / "results.jsonl", SETTINGS).add((0, "ewc", 1.0), [{"new": 2.0}])
    again = Results(tmp_path / "new" / "results.jsonl", SETTINGS)
    assert (0, "ewc", 1.0) in again
    assert (1, "ewc", 1.0) not in again
    assert (0, "ewc kind=empirical", 1.0) not in again
    assert again.rows == [{"seed": 0, "method": "ewc", "value": 1.0, "points": [{"new": 2.0}]}]


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    results = Results(file, SETTINGS)
    results.add((0, "ewc", 1.0), [{"new": 2.0}])
    whole = file.read_bytes()
    results.add((0, "ewc", 3.0), [{"new": 2.0}])
    file.write_bytes(file.read_bytes()[: len(whole) + 9])
    assert (0, "ewc", 3.0) not in results
    results.add((0, "ewc", 3.0), [{"new": 4.0}])
    assert [row["points"] for row in results.rows] == [[{"new": 2.0}], [{"new": 4.0}]]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    Results(file, SETTINGS)
    with pytest.raises(SystemExit, match=r"expected results of .*16.*found .*8.*another folder"):
        Results(file, {"width": 16})


def test_a_loss_that_is_no_number_is_not_stored(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", SETTINGS)
    with pytest.raises(ValueError, match="JSON"):
        results.add((0, "ewc", 1.0), [{"new": float("nan")}])
    assert results.rows == []
