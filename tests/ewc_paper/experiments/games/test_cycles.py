"""Scores while learning: which episodes count, what they are compared with, and the totals."""

from pathlib import Path
from typing import Any

import pytest
from support.games import make_games
from support.runs import as_text, cells, change_record

from ewc_paper.experiments.games import figure
from ewc_paper.experiments.games.cycles import (
    SCRATCH,
    cycle_panels,
    human,
    last_cycle,
    scores_in,
    skill_by,
    totals,
    visit_score,
)
from ewc_paper.experiments.games.data import Network
from ewc_paper.games.scores import ATARI_SCORES, normalized

GAMES = ["Krull", "Pong"]


def network(arm: str, scores: list[float], seed: int = 0, games: list[str] = GAMES) -> Network:
    """A network with these scores while learning, segment by segment, in two rows each."""
    schedule = [games[at % len(games)] for at in range(len(scores))]
    training = [
        {"segment": at, "score": score + change, "episodes": episodes}
        for at, score in enumerate(scores)
        for change, episodes in ((3.0, 1), (-1.0, 3))
    ]
    training.append({"segment": 0, "score": None, "episodes": 0})
    tests: list[Any] = [{"scores": {game: [0.0] for game in games}}] * (len(scores) + 1)
    return Network(Path(arm), arm, seed, games, schedule, {}, tests, training)


def random_player(game: str, scores: list[float]) -> Network:
    return Network(Path("r"), "random", 0, [game], [], {}, [{"scores": {game: scores}}], [])


NETWORKS = [
    network("plain", [10.0, 20.0, 30.0, 40.0]),
    network("ewc-kronecker", [60.0, 70.0, 80.0, 100.0]),
    network("single", [50.0, 90.0], games=["Krull"]),
    network("single", [60.0, 60.0], games=["Pong"]),
    random_player("Krull", [9.0, 11.0]),
    random_player("Pong", [20.0]),
]


def test_the_score_of_a_visit_is_the_mean_over_its_episodes() -> None:
    plain = network("plain", [10.0, 20.0, 30.0, 40.0])
    assert visit_score(plain, "Krull", 0) == pytest.approx(10.0)
    assert visit_score(plain, "Pong", 1) == pytest.approx(40.0)
    assert visit_score(plain, "Pong", 2) is None
    plain.tests.pop()  # the last segment is not complete
    assert visit_score(plain, "Pong", 1) is None
    empty = network("plain", [1.0])
    empty.training[:] = [{"segment": 0, "score": None, "episodes": 0}]
    assert visit_score(empty, "Krull", 0) is None


def test_from_scratch_is_the_first_visit_of_the_network_of_one_game() -> None:
    scores = scores_in(NETWORKS, 1)
    assert list(scores) == ["random", SCRATCH, "single", "plain", "ewc-kronecker"]
    assert scores[SCRATCH] == {0: {"Krull": pytest.approx(50.0), "Pong": pytest.approx(60.0)}}
    assert scores["single"] == {0: {"Krull": pytest.approx(90.0), "Pong": pytest.approx(60.0)}}
    assert scores["random"] == {0: {"Krull": 10.0, "Pong": 20.0}}


def test_totals_count_each_game_1_at_most_and_only_seeds_with_all_games() -> None:
    scores = scores_in([*NETWORKS, network("plain", [50.0], seed=1)], 0)
    skill = skill_by(scores_in(NETWORKS, 1))
    assert totals(scores["plain"], GAMES, skill) == {0: pytest.approx(0.0)}
    last = scores_in(NETWORKS, 1)["ewc-kronecker"]
    assert totals(last, GAMES, skill) == {0: pytest.approx(70 / 80 + 1)}
    expected = min(1.0, normalized("Krull", 80.0)) + min(1.0, normalized("Pong", 100.0))
    assert totals(last, GAMES, human) == {0: pytest.approx(expected)}
    assert normalized("Pong", 100.0) > 1 > ATARI_SCORES["Pong"][0]


def test_the_table_has_scores_and_skills_by_game_and_totals() -> None:
    shown = cells(last_cycle(NETWORKS))
    for cell in ("80.0 (0.88)", "100 (2.00)", "30.0 (0.25)", "60.0 (1.00)", "1.88", "0.75"):
        assert cell in shown, cell
    own = [one for one in NETWORKS if one.arm != "random"]
    assert "80.0 (–)" in cells(last_cycle(own))  # without a random player there is no skill


def test_the_panels_have_totals_by_cycle_and_skills_by_game() -> None:
    by_cycle, by_game = cycle_panels(NETWORKS)
    lines = {series.label: series for series in by_cycle.series}
    totals_of_plain = [
        sum(min(1.0, normalized(game, at)) for game, at in zip(GAMES, scores, strict=True))
        for scores in ((10, 20), (30, 40))
    ]
    assert lines["plain training"].x == [1.0, 2.0]
    assert lines["plain training"].values == {"seed 0": pytest.approx(totals_of_plain)}
    assert {level.label for level in by_cycle.levels} >= {"one network per game, from scratch"}
    assert by_game.y_names == GAMES
    assert [dots.x for dots in by_game.dots if dots.label == "plain training"] == [
        [pytest.approx(0.25)],
        [pytest.approx(0.5)],
    ]


@pytest.mark.parametrize("order", ["given", "drawn"])
def test_a_run_shows_them_if_its_games_come_in_cycles(order: str, tmp_path: Path) -> None:
    run = make_games(tmp_path / order)
    change_record(run.path / "config.json", order=order)
    assert ("last cycle" in as_text(figure.table(run))) == (order == "given")
    assert ("games-cycles.png" in {file.name for file in figure.draw(run)}) == (order == "given")
    assert ("games-cycles" in {one.name for one in figure.figures(run)}) == (order == "given")
