"""Arms of a run of games share their schedules; the ceiling plays each game as long as they do."""

import subprocess
import sys
import time
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import as_text, run_through

from ewc_paper.cli import main
from ewc_paper.errors import RunError
from ewc_paper.experiments.games.data import read_networks
from ewc_paper.experiments.games.run import POOL, Games
from ewc_paper.experiments.view import view_of
from ewc_paper.games.config import ALONE, ARMS, PAPERS_LEVELS, AgentConfig
from ewc_paper.games.evaluation import RandomMeasurement
from ewc_paper.games.replay import Replay
from ewc_paper.games.scores import ATARI_SCORES
from ewc_paper.options import flag
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part


def by_name(**changes: Any) -> dict[str, Part]:
    return {part.name: part for part in Games.preset("laptop", **changes).parts()}


def test_every_setting_of_the_agent_is_an_option_with_its_default() -> None:
    options = {one.name: one for one in fields(Games)}
    for setting in fields(AgentConfig):
        assert options[setting.name].default == setting.default
        assert options[setting.name].metadata["help"]


def test_the_paper_preset_has_the_papers_settings_and_numbers() -> None:
    config = Games.preset("paper")
    parts = config.parts()
    papers = AgentConfig(segment_steps=1_250_000)
    for part in parts:
        recognizes = ARMS[part.config["arm"]].recognizes  # others have no use for the option
        options = {"levels": PAPERS_LEVELS} if recognizes else {}
        assert AgentConfig(**part.config["settings"]) == replace(papers, **options)
    assert 4 * config.visits * config.segment_steps == 50_000_000  # frames a game
    arms = Counter(part.config["arm"] for part in parts)
    assert arms["plain"] == arms["ewc-labels"] == arms["ewc-fmn"] == 10 * 4
    assert len(POOL) == 19
    assert set(POOL) <= ATARI_SCORES.keys()
    sets = {tuple(part.config["games"]) for part in parts if part.config["arm"] == "plain"}
    assert len(sets) == 10
    assert all(len(set(games)) == 10 and set(games) <= set(POOL) for games in sets)


def test_the_arms_of_a_seed_share_one_schedule() -> None:
    parts = by_name()
    schedules = [
        [parts[f"{arm}-seed{seed}"].config["schedule"] for seed in range(3)]
        for arm in ("plain", "ewc-gates-labels", "ewc-gates-fmn")
    ]
    assert schedules[0] == schedules[1] == schedules[2]
    assert len({tuple(schedule) for schedule in schedules[0]}) > 1
    assert all(set(Counter(schedule).values()) == {2} for schedule in schedules[0])


def test_the_ceiling_plays_each_game_as_long_as_the_schedule_does() -> None:
    games = ("minatar/space_invaders", "minatar/breakout:rotate90")
    parts = by_name(games=games, visits=3, seeds=1)
    single = parts["single-minatar-breakout-rotate90-seed0"].config
    assert single["games"] == ["minatar/breakout:rotate90"]
    assert single["schedule"] == ["minatar/breakout:rotate90"] * 3
    assert parts["plain-seed0"].config["schedule"].count("minatar/breakout:rotate90") == 3


def test_a_random_player_of_each_game_and_seed_learns_nothing_and_needs_no_disk() -> None:
    parts = [one for one in by_name(seeds=2).values() if one.config["arm"] == "random"]
    games = {(tuple(part.config["games"]), part.config["seed"]) for part in parts}
    assert len(games) == len(parts) == 4 * 2
    assert all(part.config["schedule"] == [] and part.disk_bytes == 0 for part in parts)
    assert all(isinstance(part.make(part.config), RandomMeasurement) for part in parts)
    assert not any(name.startswith("random") for name in by_name(arms=("plain", "single")))


def test_the_disk_that_replay_memories_take_is_known_beforehand(tmp_path: Path) -> None:
    parts = {part.name: part for part in Games.preset("paper", sets=1).parts()}
    Replay(500_000, 4, (1, 84, 84), history=4, file=tmp_path / "rows")
    whole = (tmp_path / "rows").stat().st_size  # with the rows beyond the capacity
    assert parts["single-Pong-seed0"].disk_bytes == whole
    assert parts["plain-seed0"].disk_bytes == 10 * whole


def test_rows_of_a_replay_memory_that_are_never_written_need_no_disk() -> None:
    small = by_name(replay_capacity=10**6, segment_steps=1000)["plain-seed0"]
    copies = small.config["settings"]["environments"]
    row = copies * (10 * 10 * 10 + 1 + 4 + 1 + 1 + 1) + 4  # frame, action, reward, flags; checksum
    assert small.disk_bytes == 4 * 2 * 1000 // copies * row


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"games": ("Pong", "Pnog")}, "--games: .*Pnog"),
        ({"games": ("Pong", "Xyzzy")}, "expected one of 57 Atari games such as Pong, or minatar/"),
        ({"games": ("Pong", "minatar/chess")}, "--games: .*minatar/chess"),
        ({"games": ("Pong", "Pong")}, "--games must all differ, got Pong and Pong"),
        ({"games": ("Pong", "minatar/breakout")}, "--games must be all of Atari or all of MinAtar"),
        ({"games": ("Pong",)}, "--games must name at least 2 games, got 1"),
        ({"games_a_set": 5}, "--games must name at least 5 games, got 4"),
        ({"epsilon_start": 10, "epsilon_end": 9}, "--epsilon-end must be at least .* = 10, got 9"),
        ({"discount": 1.5}, "--discount must be at most 1, got 1.5"),
        ({"arms": ("plain", "magic")}, "--arms must be one of .*, got magic"),
        (
            {"n_step": 100, "max_episode_steps": 100},
            "--max-episode-steps = 100 leaves each copy 100 .* more than --n-step = 100",
        ),
        (
            {"n_step": 10, "segment_steps": 80},
            "--segment-steps = 80 in 8 copies .* 10 steps, .* more than --n-step = 10",
        ),
        ({"min_history": 40_000}, "--min-history must be at most 39976, .*; got 40000"),
        (
            {"window": 2501, "recognizer": "forget-me-not"},
            "--window must be at most 2500, .*; got 2501",
        ),
        ({"sets": 1000, "seeds": 1000}, "more than 10,000 networks"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        Games.preset("laptop", **changes).parts()


TINY = {
    "environments": 2,
    "max_episode_steps": 12,
    "batch_size": 4,
    "target_every": 16,
    "replay_capacity": 64,
    "min_history": 8,
    "epsilon_start": 8,
    "epsilon_end": 16,
    "fisher_batches": 2,
    "ewc_start": 16,
    "min_visit": 0,
    "segment_steps": 32,
    "test_episodes": 1,
    "table_episodes": 1,
    "report_every": 16,
    "visits": 2,
}


def test_the_paper_preset_runs_from_end_to_end_with_tiny_counts(tmp_path: Path) -> None:
    # A window of half a segment: each that is new is a context, with a large network to remember.
    changes = {**TINY, "games_a_set": 2, "sets": 1, "seeds": 1, "window": 8}
    config = Games.preset("paper", games=("Pong", "Boxing"), **changes)
    run = RunDirectory(tmp_path)
    run.start(config.to_dict())
    for part in config.parts():
        directory = run.part(part.name)
        directory.start(part.config)
        run_through(part.make(part.config), directory)
    arms = {one.arm for one in read_networks(run)}
    assert arms == {"plain", "ewc-labels", "ewc-fmn", "single", "random"}
    for network in read_networks(run):
        assert [test["segment"] for test in network.tests] == list(range(len(network.schedule) + 1))
        assert network.tests[-1]["step"] == 32 * len(network.schedule)
        count = 100 if network.arm == "random" else 1
        assert {len(scores) for scores in network.tests[-1]["scores"].values()} == {count}
    wells = [row["wells"] for row in run.part("ewc-labels-seed0").rows() if "wells" in row]
    assert wells == [1, 2, 2]  # dug at each of three switches; the third is of a game that returned
    assert view_of(run).table(run).row_count == 2  # the summary, and the scores by game
    drawn = {file.name for file in view_of(run).draw(run)}
    names = ("schedule", "total", "plasticity", "by-game")
    assert {f"games-{name}.png" for name in names} < drawn
    assert {"Pong.gif", "Boxing.gif"} < drawn


def test_the_sequential_preset_is_the_challenge() -> None:
    config = Games.preset("sequential")
    parts = {part.name: part.config for part in config.parts()}
    games = ["MsPacman", "Centipede", "Qbert", "Defender"]
    games += ["Krull", "Atlantis", "UpNDown", "BattleZone"]
    learners = [one for one in parts.values() if one["arm"] not in ALONE]
    for learner in learners:
        assert learner["schedule"] == games * 3
        assert learner["settings"]["segment_steps"] == 100_000  # 400,000 frames
        assert learner["settings"]["sticky"] == 0.25
        assert learner["settings"]["max_episode_steps"] == 27_000
    told = [one["arm"] for one in learners if ARMS[one["arm"]].labelled]
    assert [arm for arm in told if not ARMS[arm].recognizes] == ["plain"]
    assert parts["single-Qbert-seed0"]["schedule"] == ["Qbert"] * 3


def test_the_sequential_preset_runs_from_end_to_end_with_tiny_counts(tmp_path: Path) -> None:
    changes = {**TINY, "network": "small"}
    arms = ("ewc-kronecker", "single", "random")
    config = Games.preset("sequential", games=("MsPacman", "Krull"), arms=arms, **changes)
    run = RunDirectory(tmp_path)
    run.start(config.to_dict())
    for part in config.parts():
        directory = run.part(part.name)
        directory.start(part.config)
        run_through(part.make(part.config), directory)
    networks = {one.arm: one for one in read_networks(run)}
    assert networks.keys() == set(arms)
    assert networks["ewc-kronecker"].schedule == ["MsPacman", "Krull"] * 2
    shown = as_text(view_of(run).table(run))
    assert "while learning in the last cycle" in shown
    assert "one network per game, from scratch" in shown
    assert "games-cycles" in [figure.name for figure in view_of(run).figures(run)]


def test_a_run_on_the_command_line_is_stopped_resumed_and_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {**TINY, "size": 42, "network": "small", "segment_steps": 480, "visits": 1}
    options = [text for name, value in small.items() for text in (flag(name), str(value))]
    out = tmp_path / "run"
    command = ["run", "games", "--preset", "atari-small", "--games", "Pong", "Boxing"]
    command += ["--out", str(out), "--seeds", "1", "--arms", "plain", "--workers", "1", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "ewc_paper", *command, "--checkpoint-seconds", "0"]
    )
    replay = out / "parts" / "plain-seed0" / "replay-1.rows"
    while not replay.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    content = replay.read_bytes()
    replay.write_bytes(content[:-1])
    assert main([*command, "--resume"]) == 1
    assert "was cut short" in capsys.readouterr().err
    replay.write_bytes(content)
    assert main([*command, "--resume"]) == 0
    assert "normalized at the end" in " ".join(capsys.readouterr().out.split())
    assert not list(out.rglob("*.rows"))
    # Of each game: before training, after its visit unless that is the end, and at the end.
    assert len(list(out.rglob("*.npz"))) == 5
