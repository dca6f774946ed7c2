"""All methods that are timed have the same penalty."""

import pytest
import torch

from benchmarks import step


def test_loss_terms_and_the_memory_have_the_same_penalty() -> None:
    wells = step.random_wells(3)
    step.check(step.loss_terms(wells), wells)
    with pytest.raises(AssertionError):
        step.check(step.loss_terms(wells[:2]), wells)


def test_the_memory_leaves_the_model_at_its_weights() -> None:
    model, expected = step.starting_model(), step.starting_model()
    memory = step.memory(model, step.random_wells(2))
    assert len(memory.tasks) == 2
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected.get_parameter(name))


def test_our_method_is_compared_with_one_loss_term_per_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "TASKS", (1, 2))
    monkeypatch.setattr(step, "STEPS", 1)
    monkeypatch.setattr(step, "ROUNDS", 1)
    (table,) = step.tables(ours_only=True)
    assert [(row["method"], row["tasks"]) for row in table.rows] == [
        ("plain step", 0),
        ("ewc, attached", 1),
        ("ewc, attached", 2),
        ("one loss term per task", 1),
        ("one loss term per task", 2),
    ]
    assert table.rows[0]["multiple"] == 1.0
