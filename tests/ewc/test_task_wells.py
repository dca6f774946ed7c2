"""The wells of several tasks: added, removed, left out and followed, without changes in place."""

import pytest
import torch

from ewc.task_wells import TaskWells
from ewc.wells import Well, energy

PARAMETERS = {"w": torch.zeros(2)}


def well(precision: float, anchor: float = 0.0) -> Well:
    return Well({"w": torch.full((2,), precision)}, {"w": torch.full((2,), anchor)})


def filled(*tasks: str, **options: object) -> TaskWells:
    wells = TaskWells(**{"decay": 1.0, "keep_tasks": True, **options})
    for number, task in enumerate(tasks, 1):
        wells = wells.add(task, well(10.0**number), PARAMETERS)
    return wells


def active(wells: TaskWells) -> float:
    return float(wells.active.precision["w"][0])


def test_adding_returns_a_new_object() -> None:
    before = filled("A")
    after = before.add("B", well(5.0), PARAMETERS)
    assert before.tasks == ("A",)
    assert after.tasks == ("A", "B")
    assert active(before) == 10.0
    assert active(after) == 15.0


def test_a_task_that_is_added_again_is_the_newest() -> None:
    wells = filled("A", "B").add("A", well(3.0), PARAMETERS)
    assert wells.tasks == ("B", "A")
    assert active(wells) == 103.0


def test_with_decay_the_older_tasks_count_less() -> None:
    assert active(filled("A", "B", decay=0.5)) == 105.0


def test_removing_merges_the_others_again() -> None:
    wells = filled("A", "B", "C").remove("B", PARAMETERS)
    assert wells.tasks == ("A", "C")
    assert active(wells) == 1010.0


def test_tasks_left_out_do_not_pull_and_are_not_lost() -> None:
    wells = filled("A", "B", "C").leave_out(("A", "C"), PARAMETERS)
    assert active(wells) == 100.0
    assert float(wells.total.precision["w"][0]) == 1110.0
    assert active(wells.add("D", well(1.0), PARAMETERS)) == 101.0
    assert active(wells.leave_none_out()) == 1110.0


def test_without_keep_tasks_only_the_sum_is_kept() -> None:
    wells = filled("A", "B", keep_tasks=False)
    assert wells.kept == {}
    with pytest.raises(RuntimeError, match="keep_tasks=True"):
        wells.check_kept("A")


def test_kept_wells_are_stored_on_the_device_asked_for() -> None:
    wells = filled("A", storage=torch.device("meta"))
    assert wells.kept["A"].precision["w"].device.type == "meta"
    assert wells.total.precision["w"].device.type == "cpu"


def test_names_are_unique() -> None:
    wells = filled("task 1", "task 3", keep_tasks=False)
    assert wells.new_name(None) == "task 4"
    assert wells.new_name("B") == "B"
    with pytest.raises(ValueError, match="already has a task 'task 1'"):
        wells.new_name("task 1")
    assert filled("A").new_name("A") == "A"


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match=r"one of the tasks \['A', 'B'\], got 'C'"):
        filled("A", "B").check_kept("C")


def test_fitting_is_the_identity_where_nothing_changed() -> None:
    wells = filled("A", "B")
    assert wells.fitted(PARAMETERS) is wells


def test_fitting_follows_a_parameter_that_grew() -> None:
    grown = {"w": torch.zeros(3)}
    wells = filled("A", "B").fitted(grown)
    assert wells.active.precision["w"].tolist() == [110.0, 110.0, 0.0]
    assert wells.total is wells.active
    assert wells.kept["A"].precision["w"].shape == (2,)
    everything = wells.all_fitted(grown)
    assert everything.kept["A"].precision["w"].tolist() == [10.0, 10.0, 0.0]


def test_loading_replaces_all_tasks() -> None:
    kept = {"X": well(1.0, 2.0)}
    wells = filled("A", "B").loaded(0.5, ["X"], kept["X"], kept, PARAMETERS)
    assert (wells.decay, wells.tasks, wells.keep_tasks) == (0.5, ("X",), True)
    assert float(energy(wells.active, PARAMETERS)) == 8.0
