"""The table and the figures of a run of games compare its arms with plain training."""

from pathlib import Path

import matplotlib.image
from support.game_runs import make_games
from support.views import as_text

from ewc_paper.experiments.games import figure
from ewc_paper.runs.directory import RunDirectory


def test_the_table_compares_the_arms_with_plain_training(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_games(tmp_path)))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    assert rows["at the end"] == ["1.43 ± 0.11", "1.90 ± 0.14", "1.71 ± 0.13", "1.90 ± 0.00"]
    assert rows["end / plain"] == ["1.00", "1.33", "1.20", ""]
    assert rows["second half"][0] == "1.31 ± 0.10"
    assert rows["2nd half / plain"] == ["1.00", "1.45", "1.25", ""]
    assert rows["kept on return"] == ["25%", "100%", "64%", ""]
    assert rows["same action"] == ["50%", "100%", "80%", ""]
    assert rows["regret of Q"] == ["0.500", "0.000", "0.200", ""]
    assert (rows["recognized"][2], rows["contexts"][2]) == ("98.8%", "2.0")


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    *pictures, clip = figure.draw(run)
    names = ["games-schedule", "games-total", "games-by-game", "games-recognition"]
    assert [file.name for file in pictures] == [f"{name}.png" for name in names]
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
    assert len(figure.draw(run)) == 5
    assert "one network per game" in as_text(figure.table(run))
