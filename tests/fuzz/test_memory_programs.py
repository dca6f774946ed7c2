"""Programs for the memory: a fixed budget of them, and that what is broken is found and shown."""

import dataclasses
from collections.abc import Callable

import pytest

import ewc.curvature.wells
import ewc.memory
import ewc.pull.checks
import ewc.pull.hooks
import ewc.pull.proximal
import ewc.step_size
from ewc import step_size
from ewc.curvature.tasks import TaskWells
from ewc.curvature.wells import Well
from ewc.diagnostics import BufferCheck, HeldStatistics, ReplacementCheck
from ewc.step_size import MomentumGains
from fuzz.memory_programs import Mismatch, Operation, execute, program, run, shrink
from fuzz.seeds import few_now

PROGRAMS, PARTS = 150, 6


@pytest.mark.parametrize("part", few_now(PARTS))
def test_the_memory_equals_a_dict_of_tasks(part: int) -> None:
    for seed in range(part, PROGRAMS, PARTS):
        run(seed)


def test_a_seed_is_always_the_same_program() -> None:
    assert program(3) == program(3)
    assert program(3) != program(4)


def without_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ewc.curvature.wells.add
    monkeypatch.setattr(
        ewc.curvature.wells, "add", lambda a, b: dataclasses.replace(add(a, b), offset=0.0)
    )


def without_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(self: TaskWells, task: str, parameters: object) -> TaskWells:
        kept = {name: well for name, well in self.kept.items() if name != task}
        return dataclasses.replace(self, tasks=tuple(kept), kept=kept)

    monkeypatch.setattr(TaskWells, "remove", remove)


def with_the_last_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewc.pull.hooks, "combined", lambda states: states[-1])


def with_momentum_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(group: dict, parameters: object, states: object) -> ewc.step_size.StepSize:
        return ewc.step_size.StepSize(group["lr"])

    monkeypatch.setattr(step_size, "_known_rule", lambda step: plain)


def with_momentum_taken_as_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MomentumGains, "follow", lambda self, optimizer: {})


def with_complex_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewc.pull.checks, "_as_real", lambda tensor: tensor)


def with_weights_kept_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ewc.pull.proximal.KeptWeights.weights

    def stale(self, precisions, step, strength):
        return self._weights or weights(self, precisions, step, strength)

    monkeypatch.setattr(ewc.pull.proximal.KeptWeights, "weights", stale)


def without_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewc.pull.proximal, "CORRECTIONS", {})


def with_copies_that_do_not_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ewc.pull.Pull.__getstate__
    monkeypatch.setattr(
        ewc.pull.Pull, "__getstate__", lambda self: {**state(self), "optimizer": None}
    )


def with_grown_parts_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = ewc.curvature.wells._fitted_tensor

    def pulled(tensor: object, name: str, parameters: dict) -> object:
        old = fitted(tensor, name, parameters)
        return old.where(old != 0, 0.1) if old.shape != tensor.shape else old

    monkeypatch.setattr(ewc.curvature.wells, "_fitted_tensor", pulled)


def with_active_wells_never_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_out(self: TaskWells, tasks: tuple[str, ...], parameters: object) -> TaskWells:
        return dataclasses.replace(self, left_out=tasks)

    monkeypatch.setattr(TaskWells, "leave_out", leave_out)


def with_loaded_tasks_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = ewc.memory.unpack

    def empty(*args: object) -> tuple[object, ...]:
        wells, *others = unpack(*args)
        return dataclasses.replace(wells, total=Well(), active=Well()), *others

    monkeypatch.setattr(ewc.memory, "unpack", empty)


def with_replaced_heads_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplacementCheck, "check", lambda *args: None)


def with_moved_buffers_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferCheck, "check", lambda *args: None)


def with_statistics_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldStatistics, "hold", lambda *args: None)


@pytest.mark.parametrize(
    "breaking",
    [
        without_offset,
        without_forgetting,
        with_the_last_memory_alone,
        with_momentum_ignored,
        with_momentum_taken_as_constant,
        with_complex_weights_as_they_are,
        with_weights_kept_too_long,
        without_corrections,
        with_copies_that_do_not_pull,
        with_grown_parts_pulled,
        with_active_wells_never_renewed,
        with_loaded_tasks_lost,
        with_replaced_heads_unnoticed,
        with_moved_buffers_unnoticed,
        with_statistics_that_follow,
    ],
)
def test_a_broken_memory_is_found_and_its_program_shrunk(
    breaking: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    breaking(monkeypatch)
    found = next(seed for seed in range(PROGRAMS) if fails(program(seed)))
    smallest = shrink(found)
    assert len(smallest) <= 10
    assert "\n".join(map(str, smallest)) in capsys.readouterr().out
    with pytest.raises(Mismatch):
        execute(smallest)
    for left_out in range(len(smallest)):  # nothing in it could be spared
        assert not fails(smallest[:left_out] + smallest[left_out + 1 :])
    monkeypatch.undo()
    execute(smallest)


def fails(operations: list[Operation]) -> bool:
    try:
        execute(operations)
    except Mismatch:
        return True
    return False


def test_a_mismatch_reads_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    without_offset(monkeypatch)
    found = next(seed for seed in range(PROGRAMS) if fails(program(seed)))
    with pytest.raises(Mismatch, match=r"(?s)memory\(strength=.*anchor\(memory=0, task=.*-> the p"):
        run(found)


def test_shrinking_needs_a_failure() -> None:
    with pytest.raises(ValueError, match="a seed whose program fails, got 0"):
        shrink(0)
