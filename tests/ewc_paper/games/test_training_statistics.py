"""Statistics of training: means since the last row."""

import json

from ewc_paper.games.training_statistics import TrainingStatistics


def test_a_row_has_the_means_since_the_last_one() -> None:
    statistics = TrainingStatistics()
    statistics.count(0, 4, [1.0], epsilon=0.9)
    statistics.count(1, 4, [], epsilon=0.8)
    statistics.count(1, 4, [2.0, 6.0], epsilon=0.7)
    statistics.losses += [0.5, 1.5]
    assert statistics.take() == {
        "score": 3.0,
        "episodes": 3,
        "loss": 1.0,
        "epsilon": 0.7,
        "recognized": {"0": 4, "1": 8},
    }
    assert statistics.take() == {
        "score": None,
        "episodes": 0,
        "loss": None,
        "epsilon": 0.7,  # the last one known
        "recognized": {},
    }


def test_the_state_is_plain_and_continues_in_another() -> None:
    first, second = TrainingStatistics(), TrainingStatistics()
    first.count(2, 4, [1.0], epsilon=0.5)
    first.losses.append(0.25)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    assert second.take() == first.take()
