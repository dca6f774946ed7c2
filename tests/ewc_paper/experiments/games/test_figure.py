"""The numbers of a run of games are those of its rows, and its figures and clips show them."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from support.game_runs import STEPS, make_games, write_network

from ewc_paper.experiments.games import figure as games
from ewc_paper.experiments.games.data import (
    ceiling,
    curve,
    gain,
    read,
    returns,
    second_half,
    total,
    totals,
)
from ewc_paper.experiments.games.recognition import recognition
from ewc_paper.experiments.view import view_of
from ewc_paper.figures.names import game_name
from ewc_paper.runs.directory import RunDirectory

GAMES = ["Pong", "CrazyClimber"]  # trained in the order Pong, Crazy Climber, Crazy Climber, Pong


def texts(run: RunDirectory) -> str:
    console = Console(width=200, record=True)
    console.print(view_of(run).table(run))
    return console.export_text()


def test_the_total_is_clipped_at_one_a_game_and_not_below() -> None:
    assert total({"normalized": {"Pong": 3.0, "Krull": 0.25, "Boxing": -0.5}}) == 0.75


def test_totals_are_those_of_the_tests(tmp_path: Path) -> None:
    plain = [one for one in read(make_games(tmp_path)) if one.arm == "plain"]
    steps, values = totals(plain)
    assert steps == [0, STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    assert values[0] == pytest.approx([0, 0.9, 1.35, 0.9 * 1.25, 0.9 * 1.5])
    assert values[1] == pytest.approx([0, 1.0, 1.5, 1.25, 1.5])
    assert second_half(plain[0]) == pytest.approx(0.9 * (1.25 + 1.5) / 2)


def test_the_ceiling_has_trained_each_game_as_long_as_the_schedule(tmp_path: Path) -> None:
    networks = read(make_games(tmp_path))
    assert ceiling(networks, networks[0]) == pytest.approx([0, 0.95, 1.9, 1.9, 1.9])
    assert ceiling(networks[:1], networks[0]) is None


def test_a_game_returns_only_after_another_was_trained(tmp_path: Path) -> None:
    (pong,) = returns(read(make_games(tmp_path))[0])
    assert pong.game == "Pong"  # Crazy Climber came twice in a row
    assert pong.kept == pytest.approx(0.25)  # two segments at one half each
    assert (pong.agreement, pong.regret) == (0.5, 0.5)


def test_what_is_kept_is_counted_from_the_untrained_network(tmp_path: Path) -> None:
    """A score below a random player's, as in episodes that are cut short, can be kept too."""
    (network,) = [one for one in read(make_games(tmp_path)) if one.arm == "plain" and one.seed == 0]
    for test in network.tests:
        test["normalized"] = {game: score - 2 for game, score in test["normalized"].items()}
    (pong,) = returns(network)
    assert pong.kept == pytest.approx(0.25)


def test_the_gain_is_one_where_a_game_is_played_as_by_a_network_of_its_own(tmp_path: Path) -> None:
    networks = read(make_games(tmp_path))
    (plain,) = [one for one in networks if one.arm == "plain" and one.seed == 0]
    assert gain(networks, plain) == pytest.approx(0.9 / 0.95 + 0.45 / 0.95)
    for test in plain.tests:
        test["normalized"]["Pong"] += 1.0
    assert gain(networks, plain) == pytest.approx(1 + 0.45 / 0.95)
    assert gain([plain], plain) is None
    for network in networks:
        for test in network.tests:
            test["normalized"] = dict.fromkeys(test["normalized"], 0.5)
    assert gain(networks, plain) is None  # nobody has learned anything


def test_a_game_that_was_not_learned_has_nothing_to_keep(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, "plain", "plain", 0, GAMES, ["Pong", "CrazyClimber", "Pong"], 1.0, 0.01)
    (found,) = returns(read(run)[0])
    assert found.kept is None


def test_forgetting_is_a_fall_at_equal_steps_in_the_game(tmp_path: Path) -> None:
    steps, values = curve(read(make_games(tmp_path))[0], "Pong")
    assert steps == [0, STEPS, STEPS, 2 * STEPS, 2 * STEPS]
    assert values == pytest.approx([0, 90, 22.5, 90, 90])


def test_recognition_counts_steps_in_contexts_of_the_game_played(tmp_path: Path) -> None:
    network = next(one for one in read(make_games(tmp_path)) if one.arm == "ewc-fmn")
    found = recognition(network)
    assert found is not None
    assert found.contexts == 2
    assert found.right == pytest.approx(1 - 2 * 0.025 / 4)  # two switches, each 25 steps late


def test_the_table_sets_the_arms_beside_plain_training(tmp_path: Path) -> None:
    shown = texts(make_games(tmp_path))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    assert rows["at the end"] == ["1.43 ± 0.11", "1.90 ± 0.14", "1.71 ± 0.13", "1.90 ± 0.00"]
    assert rows["over plain"] == ["1.00", "1.33", "1.20", ""]
    assert rows["second half"][0] == "1.31 ± 0.10"
    assert rows["2nd over plain"] == ["1.00", "1.45", "1.25", ""]
    assert rows["kept on return"] == ["25%", "100%", "64%", ""]
    assert rows["same action"] == ["50%", "100%", "80%", ""]
    assert rows["regret of Q"] == ["0.500", "0.000", "0.200", ""]
    assert (rows["recognised"][2], rows["contexts"][2]) == ("98.8%", "2.0")


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    figures = [file for file in games.draw(run) if file.suffix == ".png"]
    names = ["games-schedule", "games-total", "games-by-game", "games-recognition"]
    assert [file.stem for file in figures] == names
    assert all(matplotlib.image.imread(file).std() > 0.01 for file in figures)


def test_a_clip_shows_the_arms_side_by_side_until_the_longest_ends(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    (file,) = [file for file in games.draw(run) if file.suffix == ".gif"]
    assert file == run.figures / "clips" / "Pong.gif"
    with Image.open(file) as clip:
        assert clip.n_frames == 7  # of Forget-Me-Not; plain training's ended after 4
        clip.seek(5)
        picture = np.asarray(clip.convert("L"))[14:]
    plain, gap, found = picture[:, :160], picture[:, 160:164], picture[:, 164:]
    assert plain.shape == found.shape == (160, 160)
    assert gap.max() < 60
    assert [np.flatnonzero(half[:, 80] > 200)[0] // 16 for half in (plain, found)] == [3, 5]


def test_a_run_that_has_just_begun_is_shown_too(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    assert games.draw(run) == []
    assert games.table(run).row_count == 0
    run = make_games(tmp_path / "begun")
    part = run.part("ewc-fmn-seed0")
    rows = part.rows()
    part.path.joinpath("metrics.jsonl").unlink()
    part.append(rows[0])  # the test before any training
    assert len(games.draw(run)) == 5
    assert "single games" in texts(run)


@pytest.mark.parametrize(
    ("game", "name"),
    [
        ("CrazyClimber", "Crazy Climber"),
        ("minatar/space_invaders", "space invaders"),
        ("minatar/breakout:rotate90,actions1,channels12", "breakout 90° a1 c12"),
        ("minatar/asterix:mirror", "asterix mirror"),
    ],
)
def test_games_have_names_to_read(game: str, name: str) -> None:
    assert game_name(game) == name
