"""The command line runs the benchmarks that it is asked for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.libraries import MissingLibrary
from benchmarks.tables import ResultTable


@pytest.fixture(autouse=True)
def threads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "one_thread", lambda: None)


def test_results_are_printed_and_stored_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tables(*, ours_only: bool) -> Iterator[ResultTable]:
        assert ours_only
        yield ResultTable("MLP 784-400-400-10", [{"kind": "sampled"}])

    monkeypatch.setitem(command.BENCHMARKS, "fisher", tables)
    command.main(["fisher", "--ours", "--json", str(tmp_path / "results.json")])
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["tables"][0]["rows"] == [{"kind": "sampled"}]
    assert "MLP 784-400-400-10" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["fischer"])
    assert "got fischer" in capsys.readouterr().err


def test_a_missing_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tables(*, ours_only: bool) -> Iterator[ResultTable]:
        raise MissingLibrary("opacus is not installed")

    monkeypatch.setitem(command.BENCHMARKS, "fisher", tables)
    with pytest.raises(SystemExit):
        command.main(["fisher"])
    assert "opacus is not installed" in capsys.readouterr().err.splitlines()[-1]
