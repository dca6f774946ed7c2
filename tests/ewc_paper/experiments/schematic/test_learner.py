"""With two parameters, EWC ends where both tasks are solved, and the others do not."""

import json
from itertools import islice

from ewc_paper.experiments.schematic.run import Schematic, TwoParameters


def test_only_ewc_solves_both_tasks() -> None:
    rows = {row["way"]: row for row in TwoParameters(Schematic()).run() if "way" in row}
    assert rows["sgd"]["loss_b"] < 0.05 < 1 < rows["sgd"]["loss_a"]
    assert rows["l2"]["loss_b"] > 0.5
    assert max(rows["ewc"]["loss_a"], rows["ewc"]["loss_b"]) < 0.25
    assert rows["ewc"]["points"][0] == rows["A"]["points"][-1]


def test_it_goes_on_where_it_was_stopped() -> None:
    config = Schematic(gradient_steps=20, grid=3)
    rows = list(TwoParameters(config).run())
    first, second = TwoParameters(config), TwoParameters(config)
    begun = list(islice(first.run(), 2))
    second.load_state_dict(first.state_dict())
    assert begun + list(second.run()) == rows


def test_a_way_that_diverges_says_so() -> None:
    *_, last = TwoParameters(Schematic.preset("quick", lr=1e3)).run()
    assert last["way"] == "A"  # there is no solution to go on from
    assert last["diverged"]
    assert 0 < len(last["points"]) < 1000
    assert json.dumps(last, allow_nan=False)
