"""Recognition: how many steps are correct, and how long after a switch."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import make_recognition
from support.views import as_text

from ewc_paper.experiments.recognition import figure


def test_the_table_has_means_over_seeds(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_recognition(tmp_path)))
    assert all(value in shown for value in ("92.00", "3.00", "1.50", "12.00", "0.12"))


def test_the_delay_lasts_from_a_switch_to_the_first_correct_step(tmp_path: Path) -> None:
    rows = make_recognition(tmp_path).parts()[0].rows()
    found = figure.summarize(rows, "observed")
    assert found.correct == pytest.approx(0.92)  # 20 + 4 of 300 steps are wrong
    assert (found.contexts, found.delay) == (3, (20 + 4) / 2)
    assert figure.summarize(rows[:1], "observed").delay == 0.0  # no switch


def test_contexts_are_whole_numbers(tmp_path: Path, drawn: Any) -> None:
    figure.draw(make_recognition(tmp_path))
    (ax,) = drawn.panels["recognition"]
    assert all(float(tick).is_integer() for tick in ax.get_yticks())


def test_there_is_one_band_per_segment_and_one_color_per_game(tmp_path: Path, drawn: Any) -> None:
    figure.draw(make_recognition(tmp_path))
    assert drawn.legends["recognition"] == ["Pong", "Boxing"]
    (ax,) = drawn.panels["recognition"]
    bands = [patch.get_facecolor() for patch in ax.patches[:3]]
    assert bands[0] == bands[2] != bands[1]
