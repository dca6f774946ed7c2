"""A Fisher that was computed before is consolidated as if it were computed now."""

import warnings

import pytest
import torch
from support.small_memory import make_batches, make_model, move
from torch import nn

from ewc.fisher import fisher_diagonal
from ewc.memory import EWC
from ewc.ready_fisher import ready_fisher
from ewc.warnings import EWCWarning


def equal(state, other):
    return state.keys() == other.keys() and all(torch.equal(state[k], other[k]) for k in state)


@pytest.mark.parametrize("options", [{}, {"floor": 0.1}, {"floor": 0.1, "normalize": 5.0}])
@pytest.mark.parametrize("parameters", [None, "!head.*"])
def test_a_ready_fisher_makes_the_same_memory_bit_for_bit(options, parameters):
    model = make_model()
    computed, given = (EWC(model, strength=3.0, parameters=parameters) for _ in range(2))
    for seed, task in enumerate("AB"):
        move(model, seed)
        fisher = fisher_diagonal(model, make_batches(seed), parameters=parameters)
        for memory in (computed, given):
            memory.penalty()
        first = computed.consolidate(make_batches(seed), task=task, **options)
        second = given.consolidate(fisher, task=task, **options)
        assert equal(first, second)
    assert equal(computed.state_dict(), given.state_dict())


def test_the_given_tensors_are_neither_kept_nor_changed():
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = fisher_diagonal(model, make_batches(1))
    copies = {name: tensor.clone() for name, tensor in fisher.items()}
    returned = memory.consolidate(fisher)
    assert equal(fisher, copies)
    move(model, 2)
    before = memory.penalty()
    for tensor in (*fisher.values(), *returned.values()):
        tensor.zero_()
    assert torch.equal(memory.penalty(), before)


def test_half_precision_and_gradients_are_accepted():
    model = make_model().float()
    memory = EWC(model, strength=1.0)
    ready = {n: torch.ones_like(p).bfloat16().requires_grad_() for n, p in model.named_parameters()}
    returned = memory.consolidate(ready)
    assert {tensor.dtype for tensor in returned.values()} == {torch.float32}
    assert not any(tensor.requires_grad for tensor in returned.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sampled"}, "kind='sampled' has no effect on a ready Fisher"),
        ({"likelihood": "gaussian"}, "likelihood='gaussian' has no effect"),
        ({"positions": "sum"}, "positions='sum' has no effect"),
        ({"max_samples": 5}, "max_samples=5 has no effect"),
        ({"generator": torch.Generator()}, "generator=<torch"),
        ({"floor": -1.0}, "floor to be finite and >= 0"),
        ({"normalize": 0.0}, "trace > 0, got 0"),
    ],
)
def test_options_of_a_pass_are_refused(options, message):
    model = make_model()
    memory = EWC(model, strength=1.0)
    ready = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message) as caught:
        memory.consolidate(ready, **options)
    assert "\n" not in str(caught.value)
    assert memory.tasks == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("head.bias"), "expected a Fisher for 'head.bias'"),
        (lambda f: f.update(tail=torch.ones(1)), "Fisher for 'tail', which is not a selected"),
        (lambda f: f.update({"head.bias": torch.ones(2)}), r"\(3,\) for 'head.bias', got \(2,\)"),
        (lambda f: f["head.bias"].fill_(-1.0), "finite Fisher >= 0 for 'head.bias'"),
        (lambda f: f["head.bias"].fill_(torch.nan), "finite Fisher >= 0 for 'head.bias'"),
        (lambda f: f.update({"head.bias": 1.0}), "a tensor as the Fisher of 'head.bias', got 1.0"),
        (lambda f: f.clear(), r"expected a list of batches.*got a mapping with the keys \[\]"),
    ],
)
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_bad_fisher_is_refused_and_changes_nothing(change, message, keep_tasks):
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    memory.consolidate(make_batches(1), task="A")
    before = memory.state_dict()
    fisher = fisher_diagonal(model, make_batches(1))
    change(fisher)
    with pytest.raises(ValueError, match=message):
        memory.consolidate(fisher, task="A" if keep_tasks else "B")
    assert equal(memory.state_dict(), before)


def test_one_batch_instead_of_a_list_is_explained():
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.zeros(2)}
    message = (
        r"expected a list of batches, or a Fisher keyed by parameter names \(such as "
        r"'body.weight'\); got a mapping with the keys \['input_ids', 'labels'\]"
    )
    with pytest.raises(ValueError, match=message):
        EWC(make_model(), strength=1.0).consolidate(batch)


def test_a_ready_fisher_of_zeros_is_warned_of():
    model = make_model()
    memory = EWC(model, strength=1.0)
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with pytest.warns(EWCWarning, match="zero for every weight") as caught:
        memory.consolidate(zeros)
    assert caught[0].filename == __file__


def test_weights_that_moved_without_a_pull_are_warned_of():
    model = make_model()
    memory = EWC(model, strength=1.0)
    ready = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    memory.consolidate(ready)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        memory.consolidate(ready)
    move(model, 1)
    with pytest.warns(EWCWarning, match="nothing pulled"):
        memory.consolidate(ready)


def test_tensors_follow_the_order_and_type_of_the_parameters():
    model = nn.Linear(3, 2)
    parameters = dict(model.named_parameters())
    given = {"bias": torch.ones(2, dtype=torch.float64), "weight": torch.ones(2, 3)}
    fisher = ready_fisher(given, {}, parameters)
    assert list(fisher) == ["weight", "bias"]
    assert fisher["bias"].dtype == torch.float32
