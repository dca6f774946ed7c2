"""Outputs are checked, and gradients of single samples are those of plain autograd."""

import pytest
import torch
from support.architectures import Custom
from torch import Tensor, nn

from ewc.fisher.batches import FisherBatch
from ewc.fisher.model_run import ModelRun


def batch(x: Tensor) -> FisherBatch:
    return FisherBatch((x,), {}, None, None, len(x), "batch 7")


def run_of(model: nn.Module) -> ModelRun:
    return ModelRun(model, dict(model.named_parameters()))


def test_outputs_that_are_not_finite_are_refused_by_the_name_of_the_batch() -> None:
    run = run_of(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="outputs for batch 7 are NaN or infinite"):
        run.outputs(batch(torch.full((2, 3), torch.nan)))


def test_finite_outputs_whose_sum_overflows_are_fine() -> None:
    model = Custom(lambda m, x: x * m.w, w=nn.Parameter(torch.ones(1)))
    output = run_of(model).outputs(batch(torch.full((2, 2), 3e38)))
    assert bool(output.isfinite().all())


def test_outputs_without_a_graph_are_refused() -> None:
    model = Custom(lambda m, x: m.a(x).detach(), a=nn.Linear(3, 2))
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"):
        run_of(model).outputs(batch(torch.randn(2, 3)))


def test_several_outputs_are_refused_where_the_others_would_count_too() -> None:
    model = Custom(lambda m, x: (m.a(x), m.a(x) ** 2), a=nn.Linear(3, 2))
    parameters = dict(model.named_parameters())
    x = batch(torch.randn(2, 3))
    assert ModelRun(model, parameters).outputs(x).shape == (2, 2)
    with pytest.raises(TypeError, match=r"one tensor, or `logits`.* it returned 2 outputs"):
        ModelRun(model, parameters, one_output=True).outputs(x)


def test_the_graph_knows_the_parameters_by_name() -> None:
    run = run_of(nn.Linear(3, 2))
    output = run.outputs(batch(torch.randn(2, 3)))
    assert set(run.graph(output).parameters.values()) == {"weight", "bias"}


def test_gradients_of_one_sample_for_each_cotangent() -> None:
    model = Custom(lambda m, x: m.a(x), a=nn.Linear(3, 2), unused=nn.Parameter(torch.ones(4)))
    x, cotangents = torch.randn(1, 3), [torch.randn(1, 2), torch.randn(1, 2)]
    names = ["a.weight", "a.bias", "unused"]
    run = run_of(model)
    found = list(run.sample_gradients(run.outputs(batch(x)), names, cotangents))
    for grads, cotangent in zip(found, cotangents, strict=True):
        torch.testing.assert_close(grads["a.weight"], cotangent.T @ x)
        torch.testing.assert_close(grads["a.bias"], cotangent[0])
        assert torch.equal(grads["unused"], torch.zeros(4))


def test_gradients_are_dense_and_at_least_float32() -> None:
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 3)).bfloat16()
    run = run_of(model)
    output = run.outputs(batch(torch.tensor([[1, 1]])))
    (grads,) = run.sample_gradients(output, ["0.weight", "1.weight"], [torch.ones(1, 2, 3)])
    assert grads["0.weight"].layout == torch.strided
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    assert run.zeros("0.weight").dtype == torch.float32
