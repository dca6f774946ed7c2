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


def test_a_segment_has_the_contexts_that_it_was_played_in_the_most_frequent_first() -> None:
    statistics = TrainingStatistics()
    for context, steps in ((3, 4), (1, 8), (2, 6), (3, 1)):
        statistics.count(context, steps, [], epsilon=0.5)
        statistics.take()  # rows of training do not end a segment
    assert statistics.end_segment() == [1, 2, 3]
    assert statistics.end_segment() == []


def test_the_state_is_plain_and_continues_in_another() -> None:
    first, second = TrainingStatistics(), TrainingStatistics()
    first.count(2, 4, [1.0], epsilon=0.5)
    first.losses.append(0.25)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    assert second.take() == first.take()
