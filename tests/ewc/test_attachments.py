"""A memory is attached to each of its optimizers once, and only to its own."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ewc.attachments import Attachments
from ewc.pull_state import PullState
from ewc.warnings import EWCWarning
from ewc.wells import Well


@pytest.fixture
def model():
    return nn.Linear(3, 2)


def nothing():
    return PullState({}, Well(), 0.0)


def attach(attachments, model, optimizer, how="proximal"):
    return attachments.attach(optimizer, how, list(model.parameters()), nothing, before_step=int)


def test_the_memory_is_told_before_every_step(model):
    told = []
    optimizer = SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for how in ("proximal", "gradient"):
        weight = model.weight.detach().clone()
        attachments = Attachments()
        handle = attachments.attach(
            optimizer, how, parameters, nothing, lambda: told.append(model.weight.detach().clone())
        )
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        assert torch.equal(told.pop(), weight)
        assert not torch.equal(model.weight, weight)
        handle.remove()
        optimizer.step()
        assert not told


def test_the_handle_is_found_by_optimizer(model):
    attachments, optimizer = Attachments(), SGD(model.parameters(), lr=0.1)
    handle = attach(attachments, model, optimizer)
    assert attachments[optimizer] is handle
    assert len(attachments) == 1
    assert handle.attached


def test_attaching_twice_is_refused_until_it_is_removed(model):
    attachments, optimizer = Attachments(), SGD(model.parameters(), lr=0.1)
    handle = attach(attachments, model, optimizer)
    with pytest.raises(RuntimeError, match=r"already attached to this optimizer; call remove\(\)"):
        attach(attachments, model, optimizer)
    handle.remove()
    assert attach(attachments, model, optimizer, "gradient").how == "gradient"


def test_an_optimizer_of_other_parameters_is_refused(model):
    with pytest.raises(ValueError, match="has none of them"):
        attach(Attachments(), model, SGD(nn.Linear(3, 2).parameters(), lr=0.1))


def test_the_optimizer_inside_a_wrapper_is_found(model):
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    attachments, optimizer = Attachments(), SGD(model.parameters(), lr=0.1)
    attach(attachments, model, Wrapper(optimizer))
    assert attachments[optimizer].attached


def test_optimizers_are_not_kept_alive(model):
    attachments, optimizer = Attachments(), SGD(model.parameters(), lr=0.1)
    attach(attachments, model, optimizer)
    del optimizer
    gc.collect()
    assert len(attachments) == 0


def test_parameters_without_an_optimizer_are_warned_of_once(model):
    attachments = Attachments()
    optimizer = SGD([model.bias], lr=0.1)
    attach(attachments, model, optimizer)
    parameters = dict(model.named_parameters())
    ones = {name: torch.ones_like(p) for name, p in parameters.items()}
    with pytest.warns(EWCWarning, match="protects 'weight', but no optimizer") as caught:
        attachments.check_owners(PullState(parameters, Well(ones, ones), 1.0))
    assert len(caught) == 1
    attachments.check_owners(PullState(parameters, Well(ones, ones), 1.0))
    assert len(caught) == 1


def test_a_copy_is_attached_to_the_copied_optimizer(model):
    attachments, optimizer = Attachments(), SGD(model.parameters(), lr=0.1)
    attach(attachments, model, optimizer)
    copied, its_optimizer = copy.deepcopy((attachments, optimizer))
    assert copied[its_optimizer].attached
    assert copied[its_optimizer] is not attachments[optimizer]
