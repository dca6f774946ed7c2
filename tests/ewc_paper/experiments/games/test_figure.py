"""The table and the figures of a run of games compare its arms with plain training."""

import shutil
from pathlib import Path

import matplotlib.image
import pytest
from support.game_runs import make_games
from support.views import as_text

from ewc_paper.experiments.games import figure
from ewc_paper.runs.directory import RunDirectory


def test_the_summary_stands_above_the_scores_by_game(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_games(tmp_path)))
    assert shown.index("skill, end") < shown.index("score (skill) by game")
    assert "1.47 ± 0.07" in shown
    assert "23.8 (0.25)" in shown


@pytest.mark.parametrize("missing", ["random", "single"])
def test_a_run_without_an_arm_that_skill_needs_is_shown_without_it(
    missing: str, tmp_path: Path
) -> None:
    run = make_games(tmp_path)
    for part in tmp_path.glob(f"parts/{missing}-*"):
        shutil.rmtree(part)
    shown = as_text(figure.table(run))
    assert "no skill" in shown
    assert "by game" not in shown
    names = {file.name for file in figure.draw(run)}
    assert "games-total.png" in names
    assert "games-plasticity.png" not in names


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    *pictures, clip = figure.draw(run)
    names = ["schedule", "total", "plasticity", "by-game", "recognition"]
    assert [file.name for file in pictures] == [f"games-{name}.png" for name in names]
    assert all(matplotlib.image.imread(file).std() > 0.01 for file in pictures)
    assert clip == run.figures / "clips" / "Pong.gif"


def test_a_run_that_has_just_begun_is_shown_too(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    assert figure.draw(run) == []
    assert figure.table(run).row_count == 0
    run = make_games(tmp_path / "begun")
    part = run.part("ewc-fmn-seed0")
    rows = part.rows()
    part.path.joinpath("metrics.jsonl").unlink()
    part.append(rows[0])  # the test before any training
    assert len(figure.draw(run)) == 6
    assert "one network per game" in as_text(figure.table(run))
