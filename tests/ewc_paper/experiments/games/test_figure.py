"""Figures, tables and clips of games: a look for every arm, and a word for what is left out."""

import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from PIL import Image
from support.games import (
    ARMS,
    STEPS,
    make_games,
    make_gated_games,
    write_clip,
    write_network,
    write_random_player,
)
from support.runs import as_text

from ewc_paper.errors import RunError
from ewc_paper.experiments.games import figure
from ewc_paper.experiments.games.clips import check_clip, clip_panels, draw_clips
from ewc_paper.experiments.games.data import Network, read_networks
from ewc_paper.experiments.games.figure import HIGHEST
from ewc_paper.experiments.games.tables import MEASURES, by_game, sentence, summary
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.figures.panel import LOOKS
from ewc_paper.runs.directory import RunDirectory


def plot(name: str, networks: list[Network], drawn: Any) -> None:
    """Draw one of the figures of some networks, to be looked at under its name."""
    drawn.save(figure.PLOTS[name](figure.panels_of(networks)[name], networks), Path(f"{name}.png"))


def test_the_summary_stands_above_the_scores_by_game(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_games(tmp_path)))
    assert shown.index("skill at the end") < shown.index("score (skill) by game")
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


GAMES = ["Pong", "Krull"]


@pytest.mark.parametrize(("arm", "title", "points"), [("plain", "", 0), ("ewc-labels", "EWC", 3)])
def test_the_schedule_shows_protection_only_where_there_is_any(
    arm: str, title: str, points: int, tmp_path: Path, drawn: Any
) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, arm, arm, 0, GAMES, [*GAMES, "Pong"], kept=0.5)
    plot("games-schedule", read_networks(run), drawn)
    (ax,) = drawn.panels["games-schedule"]
    assert title in ax.get_title(loc="left")
    assert bool(title) == bool(ax.get_title(loc="left"))
    assert len(ax.lines) == points


def test_the_schedule_has_one_bar_per_segment(tmp_path: Path, drawn: Any) -> None:
    plot("games-schedule", read_networks(make_games(tmp_path)), drawn)
    (ax,) = drawn.panels["games-schedule"]
    bars = [(bar.get_x(), bar.get_y() + bar.get_height() / 2) for bar in ax.patches]
    assert bars == [(0, 0), (STEPS, 1), (2 * STEPS, 1), (3 * STEPS, 0)]


@pytest.mark.parametrize("arms", [("single", "ewc-fmn", "plain"), ("plain", "single", "ewc-fmn")])
def test_arms_are_in_the_order_given(arms: tuple[str, ...], tmp_path: Path, drawn: Any) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games", "arms": list(arms)})
    for arm in arms[::-1]:
        for name in GAMES if arm == "single" else ["all"]:
            own = [name] if arm == "single" else GAMES
            write_network(run, f"{arm}-{name}", arm, 0, own, own, kept=0.5)
    names = [ARM_LABELS[arm] for arm in arms]
    networks = read_networks(run)
    plot("games-total", networks, drawn)
    plot("games-by-game", networks, drawn)
    assert drawn.legends == {"games-total": names, "games-by-game": names}


def test_the_total_skill_is_drawn_beside_the_normalized_score(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    plot("games-total", networks, drawn)
    skill, normalized = drawn.panels["games-total"]
    assert "total skill in 2 games" in skill.get_ylabel()
    assert "total normalized score" in normalized.get_ylabel()
    plain = [0, (0.9 / 0.95 + 1) / 2]  # of seed 0; clipped at 1 with seed 1
    assert skill.lines[0].get_ydata()[:2] == pytest.approx(plain)
    assert normalized.lines[0].get_ydata()[:2] == pytest.approx([0, 0.95])
    assert not skill.get_title(loc="left")
    own = next(line for line in skill.lines if line.get_label() == ARM_LABELS["single"])
    assert list(own.get_ydata()) == [0, 1, 2, 2, 2]  # games trained so far
    assert drawn.legends["games-total"] == [ARM_LABELS[arm] for arm in ARMS if arm != "random"]


def test_the_figure_says_how_many_games_are_left_out(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if (one.arm, one.games) == ("single", ["Pong"]):
            one.tests[2]["scores"]["Pong"] = [-1.0, 1.0]
    plot("games-total", networks, drawn)
    skill, _ = drawn.panels["games-total"]
    assert skill.get_title(loc="left").startswith("2 of 4 left out at the end")


def test_without_a_random_player_the_normalized_score_stands_alone(
    tmp_path: Path, drawn: Any
) -> None:
    networks = [one for one in read_networks(make_games(tmp_path)) if one.arm != "random"]
    plot("games-total", networks, drawn)
    (ax,) = drawn.panels["games-total"]
    assert "total normalized score" in ax.get_ylabel()


def points(ax: Any, marker: str, size: float = 5.5) -> list[tuple[float, int]]:
    """The large points of an arm, as skill and row."""
    found = [line for line in ax.lines if line.get_marker() == marker]
    large = [line for line in found if line.get_markersize() == size]
    return [(float(line.get_xdata()[0]), round(line.get_ydata()[0])) for line in large]


def test_each_moment_has_a_panel_with_the_mean_skill_of_every_arm(
    tmp_path: Path, drawn: Any
) -> None:
    networks = read_networks(make_games(tmp_path))
    plot("games-plasticity", networks, drawn)
    first, before, end = drawn.panels["games-plasticity"]
    assert [ax.get_title().partition(":")[0] for ax in (first, before)] == ["learned", "kept"]
    assert points(first, "^") == [(pytest.approx(1.0), 0), (pytest.approx(1.0), 1)]
    assert points(before, "^") == [(pytest.approx(0.25), 0), (pytest.approx(1.0), 1)]
    assert points(end, "^") == [(pytest.approx(1.0), 0), (pytest.approx(0.5), 1)]
    assert points(end, LOOKS["ewc-labels"].marker) == [
        (pytest.approx(1.0), 0),
        (pytest.approx(1.0), 1),
    ]
    assert drawn.legends["games-plasticity"] == [ARM_LABELS[arm] for arm in ARMS]
    assert [label.get_text() for label in first.get_yticklabels()] == ["Pong", "Crazy Climber"]


@pytest.mark.parametrize("visits", [1, 2])
def test_the_legend_of_skills_fits_into_the_figure(tmp_path: Path, drawn: Any, visits: int) -> None:
    networks = read_networks(make_gated_games(tmp_path, ["Pong", "Krull"], visits))
    plot("games-plasticity", networks, drawn)
    figure = drawn.panels["games-plasticity"][0].get_figure(root=True)
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_undefined_skills_are_marked_and_large_ones_stay_in_the_figure(
    tmp_path: Path, drawn: Any
) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "single" and one.games == ["Pong"]:
            one.tests[1]["scores"]["Pong"] = [-1.0, 1.0]
        if one.arm == "plain":
            one.tests[2]["scores"]["CrazyClimber"] = [1e6]
    plot("games-plasticity", networks, drawn)
    first = drawn.panels["games-plasticity"][0]
    assert len([line for line in first.lines if line.get_marker() == "x"]) == 3  # arms
    assert points(first, "^") == [(HIGHEST, 1)]


def test_only_moments_that_were_reached_are_drawn(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        del one.tests[2:]
    plot("games-plasticity", networks, drawn)
    assert len(drawn.panels["games-plasticity"]) == 1
    for one in networks:
        del one.tests[1:]
    assert "games-plasticity" not in figure.panels_of(networks)


def look(line: Any) -> tuple[str, Any]:
    assert isinstance(line, Line2D)
    return to_hex(line.get_color()), line._unscaled_dash_pattern


def test_the_legend_of_scores_looks_like_the_lines(tmp_path: Path, drawn: Any) -> None:
    plot("games-by-game", read_networks(make_games(tmp_path)), drawn)
    for ax in drawn.panels["games-by-game"]:
        means = [line for line in ax.lines if not line.get_label().startswith("_")]
        assert [look(line) for line in means] == [look(line) for line in drawn.handles]
    assert len({str(look(line)[1]) for line in drawn.handles}) == len(
        drawn.legends["games-by-game"]
    )


@pytest.mark.parametrize("games", [1, 3, 4])
def test_the_legend_of_scores_fits_into_the_figure(tmp_path: Path, drawn: Any, games: int) -> None:
    run = make_gated_games(tmp_path, ["Pong", "Krull", "Boxing", "Breakout"][:games])
    plot("games-by-game", read_networks(run), drawn)
    figure = drawn.panels["games-by-game"][0].get_figure(root=True)
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_the_random_player_is_a_line_at_its_mean_score(tmp_path: Path, drawn: Any) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, "plain", "plain", 0, ["Pong"], ["Pong"], kept=0.5)
    write_random_player(run, "Pong", 0, [3.0])
    write_random_player(run, "Pong", 1, [6.0, 6.0])  # every episode counts the same
    plot("games-by-game", read_networks(run), drawn)
    (ax,) = drawn.panels["games-by-game"]
    assert set(ax.lines[-1].get_ydata()) == {5.0}


def test_the_bars_cover_all_steps_in_the_color_of_the_game(tmp_path: Path, drawn: Any) -> None:
    plot("games-recognition", read_networks(make_games(tmp_path)), drawn)
    (ax,) = drawn.panels["games-recognition"]
    assert drawn.legends["games-recognition"] == ["Pong", "Crazy Climber"]
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == 4 * STEPS
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    assert min(bar.get_height() for bar in ax.patches) >= 0.08


def rows_of(networks: list[Network]) -> dict[str, list[str]]:
    """The rows by key; by name alone "over plain" would be there several times."""
    lines = as_text(summary(networks)).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    shown = [row for row in cells if row]
    keys: dict[str, list[str]] = {}
    measures = iter(MEASURES)
    for row in shown:
        measure = next(one for one in measures if one.name == row[0])
        keys[measure.key] = row[1:]
    return keys


def test_the_arms_are_compared_with_plain_training(tmp_path: Path) -> None:
    rows = rows_of(read_networks(make_games(tmp_path)))
    # plain, seed 0: 0.9 and 0.45 of 0.95; seed 1: 1 and 0.5 of 0.95, clipped at 1
    assert rows["end"] == ["1.47 ± 0.07", "1.95 ± 0.07", "1.77 ± 0.10", "2.00 ± 0.00"]
    assert rows["end ratio"] == ["1.00", "1.32", "1.20", ""]
    assert rows["end undefined"] == ["0 of 4"] * 3 + [""]
    assert rows["end from 0"] == [*rows["end"][:3], ""]
    assert rows["second"][0] == "1.35 ± 0.07"
    assert rows["second undefined"] == ["0 of 8"] * 3 + [""]
    assert rows["first"] == ["0.97 ± 0.04"] * 3 + [""]
    assert rows["first ratio"] == ["1.00"] * 3 + [""]
    assert rows["kept"] == ["25%", "100%", "64%", ""]
    assert rows["least kept"] == ["25%", "100%", "64%", ""]
    assert rows["returns"] == ["2 of 2"] * 3 + [""]
    assert rows["normalized end"] == ["1.43 ± 0.11", "1.90 ± 0.14", "1.71 ± 0.13", "1.90 ± 0.00"]
    assert rows["normalized end ratio"] == ["1.00", "1.33", "1.20", ""]
    assert rows["normalized second"][0] == "1.31 ± 0.10"
    assert rows["normalized second ratio"] == ["1.00", "1.45", "1.25", ""]
    assert rows["same action"] == ["50%", "100%", "80%", ""]
    assert rows["regret"] == ["0.500", "0.000", "0.200", ""]
    assert (rows["recognized"][2], rows["contexts"][2]) == ("98.8%", "2.0")
    assert rows["recognized in tests"] == ["", "", "90.0%", ""]


def test_contexts_that_were_merged_do_not_count(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        one.tests[-1]["contexts"] = 3 + one.seed
    assert rows_of(networks)["contexts"][2] == "3.5"


def test_a_game_played_worse_than_at_random_lowers_one_total_and_not_the_other(
    tmp_path: Path,
) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "plain":
            one.tests[-1]["scores"]["CrazyClimber"] = [-95.0, -95.0]  # a skill of -1
    rows = rows_of(networks)
    assert rows["end"][:2] == ["-0.03 ± 0.04", "1.95 ± 0.07"]
    assert "end ratio" not in rows  # there is no ratio to less than nothing
    assert rows["end from 0"][:2] == ["0.97 ± 0.04", "1.95 ± 0.07"]
    assert rows["end from 0 ratio"][1] == "2.00"
    # The third test is as it was: 1.22 on average, where the fourth has -0.03 or 0.97.
    assert rows["second"][0] == "0.60 ± 0.05"
    assert rows["second from 0"][0] == "1.10 ± 0.05"


def test_games_that_nobody_learned_are_left_out_and_counted(tmp_path: Path) -> None:
    """The own network of seed 0 plays Pong like the random player after one visit."""
    networks = read_networks(make_games(tmp_path))
    (own,) = [one for one in networks if (one.arm, one.seed, one.games) == ("single", 0, ["Pong"])]
    own.tests[1]["scores"]["Pong"] = [-1.0, 1.5]
    rows = rows_of(networks)
    assert rows["first undefined"][0] == "1 of 4"
    assert rows["second undefined"][0] == "1 of 8"  # after the third segment
    assert rows["end undefined"][0] == "0 of 4"
    assert rows["returns"][0] == "1 of 2"
    own.tests[2]["scores"]["Pong"] = [-1.0, 1.5]
    rows = rows_of(networks)
    assert rows["end undefined"][0] == "1 of 4"
    assert rows["end"][3] == "1.50 ± 0.71"  # the most that can be had


def test_a_run_without_references_says_that_it_has_no_skill(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    assert "2 games in one network" in as_text(summary(networks))
    for missing in ("random", "single"):
        rest = [one for one in networks if one.arm != missing]
        assert "needs the arms random and single" in " ".join(as_text(summary(rest)).split())
        rows = rows_of(rest)
        assert "kept" not in rows
        assert rows["normalized end"][0] == "1.43 ± 0.11"


def test_a_run_that_has_not_finished_has_no_end_yet(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "plain":
            del one.tests[3:]
    rows = rows_of(networks)
    assert rows["end"][0] == rows["normalized end"][0] == ""
    assert "end ratio" not in rows
    assert rows["first"][0] == "0.97 ± 0.04"


def test_the_sentence_is_the_total_skill_by_arm_the_best_first(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    assert sentence(networks) == (
        "One network that learned 2 games in turn has a total skill of 1.9 (EWC, told the game), "
        "1.8 (EWC, recognizes it) and 1.5 (plain training); 2 networks of one game each have 2."
    )
    assert sentence([one for one in networks if one.arm != "single"]) == (
        "One network that learned 2 games in turn has a total normalized score of 1.9 (EWC, told "
        "the game), 1.7 (EWC, recognizes it) and 1.4 (plain training)."
    )
    for one in networks:
        del one.tests[3:]
    assert sentence(networks) == ""


def test_every_row_that_is_shown_and_not_obvious_has_its_meaning_below(tmp_path: Path) -> None:
    table = summary(read_networks(make_games(tmp_path)))
    names = [str(cell) for cell in table.columns[0].cells]
    legend = [line.partition(": ")[0] for line in str(table.caption).splitlines()]
    assert set(legend) <= set(names)
    assert {"skill at the end", "skill, first visits", "kept on return"} <= set(legend)


def rows_by_game(networks: list[Network]) -> list[list[str]]:
    lines = as_text(by_game(networks)).splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def test_every_game_has_its_references_and_the_score_and_skill_of_each_arm(tmp_path: Path) -> None:
    rows = rows_by_game(read_networks(make_games(tmp_path)))
    assert [row[:2] for row in rows] == [
        ["Pong", "first visit"],
        ["", "before second"],
        ["", "at the end"],
        ["Crazy Climber", "first visit"],
        ["", "before second"],
        ["", "at the end"],
    ]
    first, before, end = rows[:3]
    # Levels of 90 and 100 with the two seeds; the game's own network has 95 ± 0.95 with each.
    assert first[2:4] == ["0.00 ± 0.07", "95.0 ± 0.67"]
    assert first[4:] == ["95.0 (1.00)"] * 3
    assert before[4:] == ["23.8 (0.25)", "95.0 (1.00)", "60.8 (0.64)"]
    assert end[4] == "95.0 (1.00)"


def test_undefined_skills_are_marked_and_counted(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    own = {one.seed: one for one in networks if one.arm == "single" and one.games == ["Pong"]}
    own[0].tests[1]["scores"]["Pong"] = [-1.0, 1.0]
    assert rows_by_game(networks)[0][4] == "95.0 (1.05, 1 of 2)"  # of seed 1
    own[1].tests[1]["scores"]["Pong"] = [-1.0, 1.0]
    assert rows_by_game(networks)[0][4] == "95.0 (–)"


def test_moments_that_were_not_reached_have_no_row(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        del one.tests[3:]
    assert [row[1] for row in rows_by_game(networks)] == [
        "first visit",
        "first visit",
        "before second",
    ]
    assert summary(networks).row_count > 0


def test_a_clip_shows_the_arms_side_by_side_until_the_longest_ends(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    (file,) = draw_clips(networks, tmp_path / "clips")
    assert file == tmp_path / "clips" / "Pong.gif"
    with Image.open(file) as clip:
        assert clip.n_frames == 7  # of Forget-Me-Not; plain training's ended after 4
        clip.seek(5)
        picture = np.asarray(clip.convert("L"))[14:]
    plain, gap, found = picture[:, :160], picture[:, 160:164], picture[:, 164:]
    assert plain.shape == found.shape == (160, 160)
    assert gap.max() < 60
    assert [np.flatnonzero(half[:, 80] > 200)[0] // 16 for half in (plain, found)] == [3, 5]


def test_the_first_network_of_an_arm_is_shown(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    write_clip(run, "plain-seed1", "Pong", 9)  # plain-seed0 has one of 4 frames
    (file,) = draw_clips(read_networks(run), tmp_path / "clips")
    with Image.open(file) as clip:
        assert clip.n_frames == 7


def test_the_page_has_those_before_training_and_after_the_first_visit_too(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    for arm in ("plain", "ewc-fmn"):
        for folder, length in (("clips/untrained", 2), ("clips/learned", 3)):
            write_clip(run, f"{arm}-seed0", "Pong", length, folder=folder)
    (panel,) = clip_panels(read_networks(run))
    assert [(film.moment, film.label, len(film.frames)) for film in panel.films] == [
        ("before any training", "untrained network", 2),  # which is the same for all arms
        ("after its first visit", ARM_LABELS["plain"], 3),
        ("after its first visit", ARM_LABELS["ewc-fmn"], 3),
        ("at the end, after all games", ARM_LABELS["plain"], 4),
        ("at the end, after all games", ARM_LABELS["ewc-fmn"], 7),
    ]


def test_the_page_has_the_same_clips(tmp_path: Path) -> None:
    (panel,) = clip_panels(read_networks(make_games(tmp_path)))
    assert panel.title == "Pong"
    assert [(film.label, len(film.frames)) for film in panel.films] == [
        (ARM_LABELS["plain"], 4),
        (ARM_LABELS["ewc-fmn"], 7),
    ]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", np.zeros(3).tobytes()])
def test_a_damaged_clip_is_named(content: bytes, tmp_path: Path) -> None:
    clip = tmp_path / "Pong.npz"
    clip.write_bytes(content)
    with pytest.raises(RunError, match=r"Pong\.npz is damaged: expected frames"):
        check_clip(clip)
    np.savez_compressed(clip, frames=np.zeros((4, 5)))
    with pytest.raises(RunError, match=r"Pong\.npz is damaged: expected gray frames"):
        check_clip(clip)
    np.savez_compressed(clip, frames=np.zeros((4, 5, 5), np.uint8))
    check_clip(clip)
