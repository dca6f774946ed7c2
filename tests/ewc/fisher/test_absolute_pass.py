"""A pass of absolute gradients equals the batch-of-one loop, for every kind of module."""

import pytest
from support.architectures import FAST, GENERAL
from support.fisher_cases import in_float64
from support.reference import assert_equal_fishers, batch_of_one_absolutes

from ewc.fisher.absolute_pass import AbsolutePass
from ewc.fisher.autograd.plan import Plan
from ewc.fisher.batches import read_batches
from ewc.processes import Processes


def absolutes(model, inputs, sizes):
    """The mean absolute gradients, in batches of these sizes."""
    sums = AbsolutePass(model, dict(model.named_parameters()))
    batches, start = [], 0
    for size in sizes:
        batches.append((tuple(x[start : start + size] for x in inputs),))
        start += size
    for batch in read_batches([batch for batch in batches if len(batch[0][0])], model):
        sums.add(batch)
    sums.flush()
    return sums.sums.mean(Processes(), None, "mean")


@pytest.mark.parametrize("name", FAST)
def test_equals_the_loop_where_every_parameter_has_a_rule(name: str, plans: list[Plan]) -> None:
    model, inputs = in_float64(FAST[name])
    expected = batch_of_one_absolutes(model, inputs)
    assert_equal_fishers(absolutes(model, inputs, [len(inputs[0])]), expected)
    assert plans[0].one_by_one == []
    assert_equal_fishers(absolutes(model, inputs, [2, 1, 99]), expected)


@pytest.mark.parametrize("name", GENERAL)
def test_equals_the_loop_where_some_have_none(name: str) -> None:
    make, _ = GENERAL[name]
    model, inputs = in_float64(make)
    expected = batch_of_one_absolutes(model, inputs)
    assert_equal_fishers(absolutes(model, inputs, [len(inputs[0])]), expected)
