"""The benchmark chooses strengths on one seed, reports others, and goes on where it stopped."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import lora
from ewc.memory import EWC


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {
        name: (*lora.METHODS[name][:2], (0.1, 0.2)) for name in ("L2 on A and B", "EWC on W")
    }
    tiny = {"steps": 2, "tuning_steps": 2, "tested": 4}
    monkeypatch.setattr(lora, "METHODS", methods)
    monkeypatch.setattr(lora, "REPORTED", (1,))
    monkeypatch.setattr(lora, "SAMPLES", 4)
    monkeypatch.setattr(lora, "QUICK", lora.replace(lora.QUICK, **tiny))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_second_start_runs_nothing_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--quick", "--file", str(tmp_path / "lora.jsonl")]
    lora.main(command)
    first = capsys.readouterr().out
    lines = [line for line in first.splitlines() if line.startswith("seed ")]
    assert len(lines) == (1 + 2 * (2 + 2 * 3)) + (1 + 2 * (2 + 2))
    tables = first[first.index("To keep: library. To learn: reference") :]
    for name in ("untrained", "before", lora.PLAIN, *lora.METHODS):
        assert tables.count(f"│ {name} ") == 2
    monkeypatch.setattr(lora, "measured", pytest.fail)
    lora.main(command)
    assert capsys.readouterr().out.endswith(tables)


def row(seed: int, method: str, value: float, **losses: float) -> dict[str, Any]:
    return {"seed": seed, "method": method, "value": value, "points": [losses]}


def test_the_strength_is_chosen_on_validation_parts_of_one_seed() -> None:
    line = "first: EWC on W"
    test = {"reference test": 9.0, "characters test": 9.0}
    rows = [
        row(0, line, 1.0, reference=1.0, characters=2.5, library=0.0, **test),
        row(0, line, 10.0, reference=1.5, characters=1.5, library=9.0, **test),
        row(0, line, 100.0, reference=0.9, characters=3.0, **dict.fromkeys(test, 0.0)),
        row(1, line, 1000.0, reference=0.0, characters=0.0, **test),
        row(0, "base: EWC on W", 5.0, library=0.0, reference=0.0),
    ]
    assert lora.best(rows, line) == [10.0, 1.0, 100.0]
    assert lora.best(rows, line, (1.0, 100.0)) == [1.0, 100.0]


def test_the_table_shows_the_reported_seeds_alone() -> None:
    losses = {"library test": 2.0, "reference test": 3.0}
    rows = [row(seed, "base: EWC on W", 10.0, **losses) for seed in lora.REPORTED]
    rows.append(row(lora.CHOOSING, "base: EWC on W", 1.0, **dict.fromkeys(losses, 99.0)))
    (found,) = (r for r in lora.summary("base", rows).rows if r["model"] == "EWC on W")
    assert found == {
        **{"model": "EWC on W", "strength": "10", "sum": "5.000 ± 0.000"},
        **{"loss on library": "2.000 ± 0.000", "loss on reference": "3.000 ± 0.000"},
    }


def test_names_of_characters_that_follow_a_rule_are_left_out() -> None:
    names = lora.character_names()
    assert names["00000"].startswith("SPACE\nEXCLAMATION MARK")
    assert "04E00" not in names  # ideographs
    assert "0AD00" not in names  # syllables


def test_every_method_is_a_memory() -> None:
    assert all(issubclass(kind, EWC) for kind, _, _ in lora.METHODS.values())


@pytest.mark.parametrize("question", lora.QUESTIONS)
def test_the_page_has_the_numbers_of_the_stored_runs(question: str) -> None:
    root = Path(__file__).parents[2]
    lines = (root / "docs/results/lora.jsonl").read_text().splitlines()
    page = (root / "docs/how-to/lora.md").read_text()
    for found in lora.summary(question, [json.loads(line) for line in lines[1:]]).rows:
        numbers = list(found.values())[1:]
        assert " | ".join(["", *map(str, numbers), ""]).replace("|  |", "| |").strip() in page
