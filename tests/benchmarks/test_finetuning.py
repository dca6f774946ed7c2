"""The benchmark runs what is missing, and shows it."""

from pathlib import Path

import pytest

from benchmarks import finetuning

ARGUMENTS = ["--quick", "--seeds", "0", "--steps", "2", "--tuning-steps", "2", "--tested", "4"]


def test_a_second_start_runs_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--folder", str(tmp_path), *ARGUMENTS, "--samples", "4", "--values", "10"]
    finetuning.main([*command, "--methods", "ewc"])
    first = capsys.readouterr().out
    ran = [line.split()[2] for line in first.splitlines() if line.startswith("seed 0")]
    assert ran == ["untrained", "before", "plain", "ewc"]  # its other Fisher options follow
    assert "before fine-tuning" in first
    assert (tmp_path / "frontier.png").exists()

    finetuning.main([*command, "--methods", "ewc", "--kind", "empirical"])
    second = capsys.readouterr().out
    (line,) = (line for line in second.splitlines() if line.startswith("seed 0"))
    assert line.startswith("seed 0  ewc kind=empirical samples=4 10: ")

    monkeypatch.setattr(finetuning, "run", pytest.fail)
    finetuning.main([*command, "--methods", "ewc"])


def test_without_results_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run 'plain'"):
        finetuning.main(["--folder", str(tmp_path), *ARGUMENTS, "--table"])
