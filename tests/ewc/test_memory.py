"""The memory is the sum of its tasks, and a failure changes nothing."""

import pytest
import torch
from support.small_memory import (
    assert_same_pull,
    equation_3,
    learn,
    make_batches,
    make_model,
    move,
    weights,
)

from ewc.fisher import fisher_diagonal
from ewc.memory import EWC


@pytest.mark.parametrize("keep_tasks", [False, True, "cpu"])
def test_the_penalty_is_equation_3_for_all_tasks(keep_tasks):
    model = make_model()
    memory = EWC(model, strength=7.0, keep_tasks=keep_tasks)
    wells = []
    for seed in range(4):
        move(model, seed)
        anchor = weights(model)
        expected = fisher_diagonal(model, make_batches(seed))
        fisher = memory.consolidate(make_batches(seed), task=f"{seed}")
        torch.testing.assert_close(fisher, expected, rtol=0, atol=0)
        wells.append((expected, anchor))
        move(model, seed + 100)
        assert_same_pull(model, memory.penalty(), equation_3(model, wells, 7.0))
    assert memory.tasks == ("0", "1", "2", "3")


def test_an_empty_memory_has_no_penalty():
    assert EWC(make_model(), strength=7.0).penalty().item() == 0.0


def test_the_strength_can_be_changed_at_any_time():
    model = make_model()
    memory = EWC(model, strength=1.0)
    learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.penalty()
    memory.strength = 3.0
    torch.testing.assert_close(memory.penalty(), 3.0 * before)


def test_the_returned_fisher_is_not_the_memorys_own():
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher, _ = learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.penalty()
    for tensor in fisher.values():
        tensor.zero_()
    assert torch.equal(memory.penalty(), before)


def test_fisher_options_reach_the_fisher():
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = memory.consolidate(make_batches(1), kind="empirical", max_samples=6)
    expected = fisher_diagonal(model, make_batches(1), kind="empirical", max_samples=6)
    torch.testing.assert_close(fisher, expected)


def test_tasks_without_a_name_are_numbered():
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=True)
    for _ in range(3):
        memory.anchor(1.0)
    assert memory.tasks == ("task 1", "task 2", "task 3")
    memory.forget("task 2")
    memory.anchor(1.0)
    assert memory.tasks == ("task 1", "task 3", "task 4")


def test_decay_anchors_all_of_the_decayed_precision_at_the_newest_solution():
    model = make_model()
    memory = EWC(model, strength=2.0, decay=0.5)
    (f_a, _), (f_b, _), (f_c, at_c) = (
        learn(memory, model, task, seed) for seed, task in enumerate("ABC")
    )
    move(model, 9)
    running = {name: 0.25 * f_a[name] + 0.5 * f_b[name] + f_c[name] for name in f_a}
    assert_same_pull(model, memory.penalty(), equation_3(model, [(running, at_c)], 2.0))


def test_floor_adds_a_fraction_of_each_parameters_mean():
    model = make_model()
    plain = fisher_diagonal(model, make_batches(1))
    fisher = EWC(model, strength=1.0).consolidate(make_batches(1), floor=0.5)
    for name, tensor in plain.items():
        torch.testing.assert_close(fisher[name], tensor + 0.5 * tensor.mean())


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_normalize_sets_the_trace_floor_included(floor):
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = memory.consolidate(make_batches(1), floor=floor, normalize=10.0)
    assert sum(f.sum().item() for f in fisher.values()) == pytest.approx(10.0)
    floored = EWC(model, strength=1.0).consolidate(make_batches(1), floor=floor)
    ratio = fisher["head.bias"] / floored["head.bias"]
    torch.testing.assert_close(
        fisher["body.weight"] / floored["body.weight"], ratio[0].expand(5, 4)
    )


def test_a_number_is_the_same_precision_for_all_weights():
    model = make_model()
    memory = EWC(model, strength=4.0)
    before = weights(model)
    memory.anchor(0.5, task="L2")
    move(model, 1)
    ones = {name: torch.full_like(w, 0.5) for name, w in before.items()}
    assert_same_pull(model, memory.penalty(), equation_3(model, [(ones, before)], 4.0))


def test_a_given_precision_is_copied():
    model = make_model()
    memory = EWC(model, strength=1.0)
    precision = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    memory.anchor(precision)
    move(model, 1)
    before = memory.penalty()
    for tensor in precision.values():
        tensor.zero_()
    assert torch.equal(memory.penalty(), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("head.bias"), "expected a precision for 'head.bias'"),
        (lambda p: p.update(tail=torch.ones(1)), "'tail', which is not a selected parameter"),
        (lambda p: p.update({"head.bias": torch.ones(2)}), r"\(3,\) for 'head.bias', got \(2,\)"),
        (lambda p: p["head.bias"].fill_(-1.0), ">= 0 for 'head.bias'"),
        (lambda p: p["head.bias"].fill_(torch.nan), ">= 0 for 'head.bias'"),
        (lambda p: p["head.bias"].fill_(torch.inf), ">= 0 for 'head.bias'"),
    ],
)
def test_a_bad_precision_is_refused_and_changes_nothing(change, message):
    model = make_model()
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    precision = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    change(precision)
    move(model, 1)
    before = memory.penalty()
    with pytest.raises(ValueError, match=message):
        memory.anchor(precision)
    assert memory.tasks == ("task 1",)
    assert torch.equal(memory.penalty(), before)


class Bomb:
    """Batches that break after the first one."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        yield make_batches(1)[0]
        raise self.error


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_consolidation_that_fails_changes_nothing(error, keep_tasks):
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.state_dict()
    with pytest.raises(type(error)):
        memory.consolidate(Bomb(error), task="A" if keep_tasks else "B")
    after = memory.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_weights_that_are_nan_are_not_consolidated():
    model = make_model()
    memory = EWC(model, strength=1.0)
    with torch.no_grad():
        model.body.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"(?i)nan|finite"):
        memory.consolidate(make_batches(1))
    with pytest.raises(ValueError, match=r"finite weights, but 'body.weight'"):
        memory.anchor(1.0)
    assert memory.tasks == ()


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_bad_strength_is_refused(strength):
    with pytest.raises(ValueError, match="strength >= 0, got"):
        EWC(make_model(), strength=strength)
    memory = EWC(make_model(), strength=2.0)
    with pytest.raises(ValueError, match="strength >= 0, got"):
        memory.strength = strength
    assert memory.strength == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floor": -0.1}, "floor to be finite and >= 0, got -0.1"),
        ({"floor": float("nan")}, "floor to be finite and >= 0, got nan"),
        ({"normalize": 0.0}, "trace > 0, got 0.0"),
        ({"normalize": float("inf")}, "trace > 0, got inf"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, message):
    with pytest.raises(ValueError, match=message):
        EWC(make_model(), strength=1.0).consolidate(Bomb(AssertionError("read")), **options)


def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"0 <= decay <= 1, got 1\.5"):
        EWC(make_model(), strength=1.0, decay=1.5)
    with pytest.raises(ValueError, match="matches no parameter name"):
        EWC(make_model(), strength=1.0, parameters="tail.*")
    with pytest.raises(ValueError, match="precision to be finite and >= 0, got -1"):
        EWC(make_model(), strength=1.0).anchor(-1.0)
