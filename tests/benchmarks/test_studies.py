"""The studies on digits and games: each runs at its smallest size, and says what it claims to."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim import SGD

import ewc
from benchmarks.studies import (
    batch_norm,
    budget,
    budget_games,
    methods,
    recognition,
    rounding,
    variants,
)
from benchmarks.studies.methods import METHODS, SEARCH_SEED, Cell, CellRow, append_row, read_rows
from benchmarks.studies.recognition import Log, RecordedFrames, RedrawingPlayer, describe, judge
from ewc_paper.cli import main as run_command
from ewc_paper.experiments.games.run import Games
from ewc_paper.games.worlds.game import make_game
from ewc_paper.mnist.data import Data, PermutedTasks, Split, load
from ewc_paper.mnist.learner import FISHER_BATCH
from tools import random_scores

SIZE = Cell(tasks=2, images=256)


def tiny_split(samples: int, seed: int) -> Split:
    """Images whose labels can be learned: the brightest of the first ten pixels."""
    images = torch.rand(samples, 784, generator=torch.Generator().manual_seed(seed))
    return Split(images, images[:, :10].argmax(1))


@pytest.fixture
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> Data:
    """Few images, and a narrow network, for all studies of permuted MNIST."""
    data = Data(tiny_split(256, 0), tiny_split(20, 1), tiny_split(30, 2))
    methods._data.cache_clear()
    monkeypatch.setattr(methods, "load", lambda **options: data)
    monkeypatch.setattr(methods, "CONFIG", replace(methods.CONFIG, width=8, segments=1))
    return data


def result(cell: Cell, accuracy: float) -> CellRow:
    each = [accuracy] * cell.tasks
    return CellRow(cell=cell, accuracy=each, learned=each, seconds=0.0)


# -- methods ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("peak", [-7, -2, 0, 1, 3, 6, 99])
def test_the_search_ends_at_the_peak(peak: int) -> None:
    scores: dict[int, float] = {}
    while wanted := methods.next_halves(scores):
        scores |= {half: -abs(half - peak - 0.1) for half in wanted}
    assert max(scores, key=scores.__getitem__) == min(peak, max(methods.HALVES))
    assert peak == 99 or {peak - 1, peak, peak + 1} <= scores.keys()
    assert peak == 99 or len(scores) <= 9


def test_strengths_are_chosen_on_seeds_and_images_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Cell] = []

    def fake(wanted: list[Cell], rows: dict[Cell, CellRow], file: Path, workers: int) -> None:
        """λ = 100 is best in the search, and 1 for the seeds reported."""
        for cell in wanted:
            if cell not in rows:
                trained.append(cell)
                far = abs(math.log10(cell.strength or 1) - (2 if cell.seed == SEARCH_SEED else 0))
                rows[cell] = result(cell, 0.9 - far / 100 + cell.seed % 1000 / 100)

    monkeypatch.setattr(methods, "train_cells", fake)
    size = Cell(tasks=4, images=100)
    lines = methods.run(["naive", "si"], size, 2, 2, tmp_path / "none.jsonl", 1)
    searched = [cell for cell in trained if cell.seed == SEARCH_SEED]
    reported = [cell for cell in trained if cell.seed != SEARCH_SEED]
    assert all(cell.held_out and cell.tasks == 2 and cell.method == "si" for cell in searched)
    assert all(not cell.held_out and cell.tasks == 4 for cell in reported)
    assert [(cell.method, cell.strength, cell.seed) for cell in reported] == [
        *(("naive", 0.0, 0), ("naive", 0.0, 1), ("si", 100.0, 0), ("si", 100.0, 1)),
    ]
    assert lines[-1] == "| synaptic intelligence | 100 |" + " 88.50 ± 0.71 |" * 4
    assert lines[-2] == "| none |  |" + " 90.50 ± 0.71 |" * 4


def test_the_search_never_sees_the_test_images(tiny_data: Data) -> None:
    assert methods._data(256, True).test is tiny_data.validation
    assert methods._data(256, False).test is tiny_data.test
    for held_out in (True, False):
        assert methods._data(256, held_out).train is tiny_data.train
        assert len(methods._data(256, held_out).validation) == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_remembers_every_task(
    name: str, tiny_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Noted(METHODS[name].learner):  # type: ignore[misc, name-defined]
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            made.append(self)

    method = replace(METHODS[name], learner=Noted)
    monkeypatch.setitem(METHODS, name, method)
    strength, limit = method.strength, method.budget
    row = methods.train(Cell(method=name, strength=strength, budget=limit, tasks=2))
    assert len(row["accuracy"]) == len(row["learned"]) == 2
    assert row["learned"][-1] == row["accuracy"][-1]
    memory = made[0].memory
    assert memory.budget == (limit or None)
    assert limit or memory.strength == strength
    assert memory.tasks == (("0", "1") if strength or limit else ())
    if memory.tasks:
        with torch.no_grad():
            for parameter in made[0].model.parameters():
                parameter.add_(0.1)
        assert memory.penalty() > 0


def test_a_stop_loses_the_row_that_was_being_written_and_no_other(
    tiny_data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs" / "methods.jsonl"
    assert read_rows(file) == {}
    command = ["--methods", "naive", "--tasks", "1", "--workers", "1", "--results", str(file)]
    methods.main([*command, "--seeds", "1"])
    first = file.read_bytes()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| none |  | ")
    methods.main([*command, "--seeds", "2"])
    content = file.read_bytes()
    assert content.startswith(first)
    assert len(read_rows(file)) == 2
    for length in range(len(first), len(content)):
        file.write_bytes(content[:length])
        (cell,) = read_rows(file)
        assert cell.seed == 0
    row = result(replace(cell, seed=5, strength=10**0.5), 0.25)
    append_row(file, row)
    assert list(read_rows(file).values())[1] == row


@pytest.mark.parametrize("line", ["{", "[]", '{"cell": {"shape": 1}}', '{"cell": {}}'])
def test_a_line_that_is_no_result_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "results.jsonl"
    append_row(file, result(SIZE, 0.5))
    before = file.read_text() + line + "\n"
    file.write_text(before)
    with pytest.raises(ValueError, match="line 2: expected a result"):
        read_rows(file)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("study", "argument"), [(methods, "--search-tasks"), (budget, "--seeds")], ids=["methods", "b"]
)
def test_nonsense_is_refused(study: object, argument: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        study.main([argument, "0"])
    assert f"expected {argument} of at least 1" in capsys.readouterr().err


# -- budget ----------------------------------------------------------------------------------------


def test_the_search_spans_six_decades_beside_plain_and_joint_training() -> None:
    cells = list(budget.cells_of(SIZE, "diagonal"))
    assert len(set(cells)) == len(cells)
    strengths = {cell.strength for cell in cells if cell.method == budget.EWC and not cell.budget}
    assert {10.0**power for power in range(7)} <= strengths
    assert {"naive", "joint"} <= {cell.method for cell in cells}
    assert budget.DEFAULT in {cell.budget for cell in cells}


def test_the_table_has_what_is_finished_for_all_seeds() -> None:
    cells = [list(budget.cells_of(replace(SIZE, seed=seed), "diagonal")) for seed in (0, 1)]
    rows = {cell: result(cell, 0.90) for cell in cells[0]}
    rows |= {cell: result(cell, 0.91) for cell in cells[1][:2]}
    numbers = "| 90.50 ± 0.71 | 90.50 ± 0.71 | 90.50 ± 0.71 |"
    lines = [f"| plain training {numbers}", f"| the default budget {numbers}"]
    assert budget.table(cells, rows)[2:] == lines


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_cell_has_its_budget_and_optimizer(tiny_data: Data, optimizer: str) -> None:
    cell = replace(SIZE, method=budget.EWC, optimizer=optimizer, budget=0.3)
    learner = methods.make_learner(cell)
    assert learner.memory.budget == 0.3
    assert type(learner.optimizer).__name__.lower() == optimizer
    fixed = methods.make_learner(replace(cell, budget=0.0, strength=7.0))
    assert (fixed.memory.budget, fixed.memory.strength) == (None, 7.0)


def test_rises_are_those_of_the_first_task(tiny_data: Data) -> None:
    """A smaller budget lets the estimate rise less; the real rise is a difference of losses."""
    cell = replace(SIZE, method=budget.EWC, epochs=20)
    small, large = (budget.rises(replace(cell, budget=value)) for value in (1e-6, 1.0))
    assert 0 < small[0] < large[0]
    assert small[1] < large[1]
    assert 1e-6 * small[2] >= small[0]  # the largest estimate, in budgets
    assert 0.5 < small[2] < 20
    assert 0 < large[2] < 1


def test_the_budget_is_compared_with_a_search(
    tiny_data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--tasks", "2", "--seeds", "1", "--images", "256", "--results", str(file)]
    budget.main(arguments)
    printed = capsys.readouterr().out
    assert printed.count("| plain training |") == printed.count("| the default budget") == 2
    assert len(file.read_text().splitlines()) == 2 * len(list(budget.cells_of(SIZE, "diagonal")))
    budget.main([*arguments, "--table"])
    assert capsys.readouterr().out.strip() in printed
    factors = ["--curvature", "kronecker", "--optimizers", "sgd", "--no-joint"]
    budget.main([*arguments, *factors])
    assert f"| λ = {budget.STRENGTHS['kronecker'][0]:g} |" in capsys.readouterr().out
    trained = {cell.method for cell in methods.read_rows(file)}
    assert trained == {"naive", "joint", *budget.CURVATURES.values()}
    budget.main([*arguments, "--rises"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * (4 + 4)  # strengths and budgets, with each optimizer
    assert "| sgd | budget auto |" in lines[-1]
    budget.main([*arguments, "--rises", "--curvature", "kronecker"])
    with_factors = capsys.readouterr().out.splitlines()
    assert len(with_factors) == len(lines)
    assert with_factors[-1] != lines[-1]


def game_row(line: str, seed: int, *scores: float) -> budget_games.Row:
    by_game = {game: [score] for game, score in zip(budget_games.GAMES, scores, strict=True)}
    return {"line": line, "seed": seed, "scores": by_game}


def test_skill_is_between_the_random_player_and_the_network_of_one_task() -> None:
    rows = [
        *(game_row("random", 0, 1.0, 2.0), game_row("single", 0, 11.0, 4.0)),
        *(game_row("default", 0, 6.0, 5.0), game_row("random", 1, 0.0, 0.0)),
        game_row("default", 1, 6.0, 5.0),
    ]
    assert budget_games.skills(rows, "default", 0) == [0.5, 1.5]
    assert budget_games.skills(rows, "random", 0) == [0.0, 0.0]
    assert budget_games.skills(rows, "default", 1) is None, "the network of one task is missing"
    lines = list(budget_games.table(rows, [0]))
    assert lines[-1] == "| default | 100.00 | 50.00 | 150.00 |"
    assert len(lines) == 2 + 3
    assert len(list(budget_games.table(rows, [0, 1]))) == 2


def test_each_line_has_its_own_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = []
    monkeypatch.setattr(budget_games, "_last_scores", learners.append)
    for line in budget_games.LINES[2:]:
        budget_games.scores(line, 0, Games.preset("laptop", **budget_games.CHANGES))
    plain, default, *_, strongest = learners
    assert [learner.protected for learner in learners[:3]] == [False, True, True]
    assert default.agent.memory.budget == "auto"
    assert strongest.agent.memory.strength == 1e6
    assert not plain.agent.memory.tasks


def test_networks_of_games_are_trained_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {**budget_games.CHANGES, "table_episodes": 1, "max_episode_steps": 40}
    monkeypatch.setattr(budget_games, "CHANGES", tiny)
    file = tmp_path / "rows.jsonl"
    command = ["--results", str(file), "--seeds", "1", "--steps", "100"]
    budget_games.main([*command, "--lines", "random"])
    budget_games.main([*command, "--lines", "random", "plain"])
    rows = budget_games.read_rows(file)
    assert [(row["line"], row["seed"]) for row in rows] == [("random", 0), ("plain", 0)]
    budget_games.main([*command, "--table"])
    assert "| MinAtar |" in capsys.readouterr().out


# -- batch norm, bfloat16 and kinds of Fisher ------------------------------------------------------


def test_held_statistics_keep_what_free_ones_lose(capsys: pytest.CaptureFixture[str]) -> None:
    held = batch_norm.accuracies("hold", "inverted", seed=0, samples=3000)
    free = batch_norm.accuracies("free", "inverted", seed=0, samples=3000)
    assert held[0] == free[0] > 0.8  # the first task is learned in the same way
    assert held[1] > free[1] + 0.2
    batch_norm.main(["--seeds", "0", "--samples", "64"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(batch_norm.ROWS) * len(batch_norm.SECOND_TASKS)


def test_weights_in_float32_rest_at_the_minimum_and_those_in_bfloat16_do_not() -> None:
    for how in ("proximal", "gradient"):
        exact = rounding.rest_point(SGD, 3e-2, torch.float32, how, 1000)
        assert exact == pytest.approx(0.5, abs=0.02)
    with pytest.warns(ewc.EWCWarning, match="'weight' is kept in bfloat16"):
        proximal = rounding.rest_point(SGD, 3e-3, torch.bfloat16, "proximal", 3000)
    assert proximal > 0.6
    gradient = rounding.rest_point(SGD, 3e-3, torch.bfloat16, "gradient", 3000)
    assert gradient == pytest.approx(0.5, abs=0.03)


def test_the_table_of_roundings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounding.rest_point, "__defaults__", (2,))  # steps
    rounding.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(rounding.OPTIMIZERS)
    assert len(lines[-1].split()) == 2 + 4


def test_the_fisher_of_batches_is_below_the_empirical_one() -> None:
    tasks = PermutedTasks(load(train_samples=2 * FISHER_BATCH, test_samples=10), seed=0)
    learners = dict(variants.variants(tasks))
    *kinds, squared, stronger = learners
    assert set(kinds) == {"exact", "sampled", "empirical"}
    ratio = learners[stronger].memory.strength / learners[squared].memory.strength
    assert ratio == FISHER_BATCH  # makes up for the size of the batch
    torch.manual_seed(0)
    penalties = {}
    for name in ("empirical", squared):
        learners[name]._remember()
        assert learners[name].fisher_seconds > 0
        with torch.no_grad():
            for parameter in learners[name].model.parameters():
                parameter += 0.01
        penalties[name] = learners[name].memory.penalty().item()
    # (mean g)² <= mean g², by Jensen's inequality
    assert 0 < penalties[squared] < penalties["empirical"]


# -- recognition and scores of games ---------------------------------------------------------------


class Told:
    """A recognizer that says what the first pixel says, and merges 3 into 1 at the first 9."""

    def __init__(self) -> None:
        self.merged: list[tuple[int, int]] = []

    def observe(self, frame: np.ndarray) -> int:
        self.merged = [(3, 1)] if frame[0, 0] == 9 else []
        return 1 if frame[0, 0] == 9 else int(frame[0, 0])


def test_tasks_merges_and_mistakes_are_counted() -> None:
    plan = [("A", (0, 0, 0, 3)), ("B", (0, 1, 1, 1, 1)), ("A", (1, 0, 0, 9)), ("C", (0, 0, 0, 0))]
    shown = [(game, np.array(told, dtype=np.uint8)[:, None, None]) for game, told in plan]
    log = recognition.watch(Told(), shown)
    assert log.merged == {3: 1}
    outcome = judge(log)
    assert outcome.right == {"A": 5 / 8, "B": 4 / 5, "C": 0}
    assert outcome.tasks == {"A": 1, "B": 1}
    assert outcome.mistakes == {("A", "B"): 3, ("B", "A"): 1, ("C", "A"): 4}
    assert outcome.delays == [4, 4, 16]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([1] * 8, ["right 100.00 %, contexts per game 1.00, delay 0.0", "none taken for none (0 "]),
        (
            [0, 0, 1, 1, 1, 1, 1, 2],
            [
                *("right 87.50 %, contexts per game 1.50, delay 8.0", "worst game B (75.00 %)"),
                *("most contexts B (2)", "worst pair B taken for A (2 observations)"),
            ],
        ),
    ],
)
def test_the_worst_are_named(second: Sequence[int], said: Sequence[str]) -> None:
    text = describe([judge(Log([("A", [0] * 8), ("B", list(second))], seconds=[1, 0.004]))])
    assert "0.50 ms per observation" in text
    assert all(part in text for part in said)


def test_sets_are_drawn_by_their_number_and_first_visits_may_be_longer(tmp_path: Path) -> None:
    class Recorded(RecordedFrames):
        def visit(self, game: str, number: int, agent_steps: int) -> np.ndarray:
            return np.array([number, agent_steps])

    games, drawn = [f"game {number}" for number in range(20)], recognition.drawn
    assert drawn(games, 5, 1) == drawn(games[::-1], 5, 1) != drawn(games, 5, 2)
    assert len(set(drawn(games, 5, 1))) == 5
    frames = Recorded(tmp_path, "random")
    shown = list(recognition.rounds(frames, ["A", "B", "C"], 60_000, seed=0))
    assert sorted(game for game, _ in shown[:3]) == sorted(game for game, _ in shown[3:])
    assert [list(visit) for _, visit in shown] == [[0, 60_000]] * 3 + [[1, 2_000]] * 3


def test_the_recognizer_is_measured_on_recorded_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recognition, "VISIT_STEPS", 80)
    command = "recognition --games 2 --sets 2 --first-steps 80 --player persistent --frames"
    monkeypatch.setattr(sys, "argv", [*command.split(), str(tmp_path)])
    recognition.main()
    printed = capsys.readouterr().out
    lines = [line.split(":")[0] for line in printed.splitlines() if not line.startswith(" ")]
    assert lines == ["set 0", "set 1", "all"]
    monkeypatch.delattr(recognition, "record")  # each visit is played once
    recognition.main()
    assert capsys.readouterr().out.partition(", delay")[0] == printed.partition(", delay")[0]


def test_a_visit_is_repeated_by_its_seed() -> None:
    def recorded(seed: int, redraw: float) -> np.ndarray:
        return recognition.record(RedrawingPlayer("Pong", seed, redraw), 12)

    frames = recorded(0, 1.0)
    assert frames.shape == (12, 42, 42)
    assert np.array_equal(frames, recorded(0, 1.0))
    assert not np.array_equal(frames, recorded(1, 1.0))
    assert not np.array_equal(frames, recorded(0, 0.05))


def test_a_trained_network_plays_its_game(tmp_path: Path) -> None:
    tiny = "--segment-steps 200 --visits 1 --max-episode-steps 40 --test-episodes 1 --seeds 1"
    run = f"run games --preset atari-small --games Pong Boxing --arms single {tiny} --workers 1"
    small = "--table-episodes 1 --network small --min-history 64 --average-span 0 --n-step 1"
    assert run_command([*run.split(), *small.split(), "--out", str(tmp_path / "run")]) == 0
    player = recognition.trained_player("Pong", 0, tmp_path / "run")
    assert player.agent is not None
    values = player.agent.action_values(torch.from_numpy(player.game.states))
    greedy = player.agent.act(player.game.states, 0.0, np.random.default_rng(0))
    assert np.array_equal(greedy, values.argmax(1).numpy())
    frames = RecordedFrames(tmp_path / "frames", "trained", tmp_path / "run")
    assert frames.visit("Pong", 0, 16).shape == (4, 42, 42)
    with pytest.raises(ValueError, match="expected a network trained on frames of 42x42, got None"):
        recognition.trained_player("Pong", 0, None)


def test_scores_of_a_random_player_depend_on_the_game_and_the_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = make_game("minatar/breakout")
    scores = [random_scores.random_score(game, seed) for seed in (*range(20), *range(20))]
    assert scores[:20] == scores[20:]
    assert len(set(scores)) > 1
    monkeypatch.setattr(sys, "argv", ["random_scores", "minatar/breakout", "--episodes", "20"])
    random_scores.main()
    name, mean, sign, error = capsys.readouterr().out.split()
    assert (name, sign) == ("minatar/breakout", "±")
    assert float(mean) == pytest.approx(np.mean(scores), abs=1e-3)
    assert float(error) == pytest.approx(np.std(scores[:20], ddof=1) / 20**0.5, abs=1e-3)
