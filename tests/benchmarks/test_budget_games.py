"""The lines of the pair of games differ in their pull, and skill is relative to the same seed."""

from pathlib import Path

import pytest

from benchmarks import budget_games
from benchmarks.budget_games import GAMES, LINES, main, read_rows, scores, skills, table
from ewc_paper.experiments.games.run import Games


def row(line: str, seed: int, first: float, second: float) -> budget_games.Row:
    return {
        "line": line,
        "seed": seed,
        "scores": dict(zip(GAMES, ([first], [second]), strict=True)),
    }


ROWS = [
    *(row("random", 0, 1.0, 2.0), row("single", 0, 11.0, 4.0), row("default", 0, 6.0, 5.0)),
    *(row("random", 1, 0.0, 0.0), row("default", 1, 6.0, 5.0)),
]


def test_skill_is_between_the_random_player_and_the_network_of_one_task() -> None:
    assert skills(ROWS, "default", 0) == [0.5, 1.5]
    assert skills(ROWS, "random", 0) == [0.0, 0.0]
    assert skills(ROWS, "default", 1) is None, "the network of one task is missing"


def test_the_table_has_what_is_finished_for_all_seeds() -> None:
    lines = list(table(ROWS, [0]))
    assert lines[-1] == "| default | 100.00 | 50.00 | 150.00 |"
    assert len(lines) == 2 + 3
    assert len(list(table(ROWS, [0, 1]))) == 2


def test_each_line_has_its_own_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls = {}
    for line in LINES[2:]:
        monkeypatch.setattr(
            budget_games,
            "_last_scores",
            lambda learner, line=line: pulls.update(
                {line: (learner.protected, learner.agent.memory.budget, learner.agent.memory)}
            ),
        )
        scores(line, 0, Games.preset("laptop", **budget_games.CHANGES))
    assert [pulls[line][0] for line in LINES[2:5]] == [False, True, True]
    assert pulls["default"][1] == "auto"
    assert pulls["λ = 1e+06"][2].strength == 1e6


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    found = dict(zip(GAMES, ([1.0], [2.0]), strict=True))
    monkeypatch.setattr(budget_games, "scores", lambda line, seed, settings: found)
    main(["--results", str(file), "--seeds", "1", "--lines", "random"])
    main(["--results", str(file), "--seeds", "1", "--lines", "random", "plain"])
    assert [(one["line"], one["seed"]) for one in read_rows(file)] == [("random", 0), ("plain", 0)]
    main(["--results", str(file), "--table"])
    assert "| MinAtar |" in capsys.readouterr().out
