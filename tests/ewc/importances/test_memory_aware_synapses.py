"""MAS is the mean absolute gradient of the squared output norm, of each sample, without labels."""

import pytest
import torch
from support.fisher import assert_equal_fishers, batch_of_one_absolutes
from support.ranks import make_model as rank_model
from support.ranks import make_task
from torch import nn
from torch.distributed.fsdp import fully_shard

from ewc.importances import memory_aware_synapses
from ewc.memory import EWC


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)).double()


def inputs(samples=30):
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(1)).double()


def test_it_is_the_mean_over_samples_in_any_batch_size_and_with_any_labels():
    model, x = make_model(), inputs()
    expected = batch_of_one_absolutes(model.eval(), (x,))
    assert_equal_fishers(memory_aware_synapses(model, [x]), expected)
    assert_equal_fishers(memory_aware_synapses(model, x.split(7)), expected)
    labels = torch.randint(3, (30,))
    assert_equal_fishers(memory_aware_synapses(model, [(x, labels)]), expected)
    values = torch.randn(30, 3)
    assert_equal_fishers(memory_aware_synapses(model, [(x, values)]), expected)


def test_it_is_not_the_absolute_gradient_of_the_batch():
    model, x = make_model().eval(), inputs()
    found = memory_aware_synapses(model, [x])
    model(x).square().sum(1).mean().backward()
    for name, parameter in model.named_parameters():
        assert bool((found[name] >= parameter.grad.abs() - 1e-12).all())
    assert float(found["0.weight"].sum()) > 1.2 * float(model[0].weight.grad.abs().sum())


def test_masked_positions_do_not_count():
    torch.manual_seed(0)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.out = nn.Embedding(9, 4), nn.Linear(4, 5)

        def forward(self, input_ids, attention_mask=None):
            return {"logits": self.out(self.rows(input_ids))}

    model = Tagger().double()
    tokens = torch.randint(9, (6, 7))
    mask = torch.rand(6, 7) < 0.6
    whole = nn.Sequential(model.rows, model.out)
    reference = batch_of_one_absolutes(whole, (tokens,), mask)
    expected = dict(zip(dict(model.named_parameters()), reference.values(), strict=True))
    found = memory_aware_synapses(model, [{"input_ids": tokens, "attention_mask": mask}])
    assert_equal_fishers(found, expected)
    labels = torch.where(mask, tokens.clamp(max=4), -100)
    found = memory_aware_synapses(model, [{"input_ids": tokens, "labels": labels}])
    assert_equal_fishers(found, expected)


def test_it_stops_after_max_samples():
    model, x = make_model().eval(), inputs()
    expected = batch_of_one_absolutes(model, (x[:10],))
    assert_equal_fishers(memory_aware_synapses(model, x.split(7), max_samples=10), expected)
    with pytest.raises(ValueError, match="max_samples must be at least 1"):
        memory_aware_synapses(model, [x], max_samples=0)


def test_it_leaves_the_model_as_it_was_and_fits_the_memory():
    model, x = make_model(), inputs()
    model.train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    memory = EWC(model, strength=1.0, parameters="!3.*")
    memory.anchor(memory_aware_synapses(model, [x], parameters="!3.*"), task="A")
    assert model.training
    assert model[2].training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    with torch.no_grad():
        model[0].weight += 0.1
    assert memory.penalty() > 0


def test_what_cannot_be_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="batches is empty"):
        memory_aware_synapses(model, [])
    with pytest.raises(TypeError, match="wrap it in a list"):
        memory_aware_synapses(model, inputs())


def test_in_several_processes_it_is_the_mean_over_the_samples_of_all(four_ranks):
    x, _ = make_task(1)
    expected = batch_of_one_absolutes(rank_model(), (x,))
    for result in four_ranks.of("data_parallel.other_calls"):
        assert_equal_fishers(result["absolutes"], expected)


@pytest.mark.usefixtures("one_rank")
def test_a_model_in_shards_is_refused():
    with pytest.raises(ValueError, match="in shards"):
        memory_aware_synapses(fully_shard(make_model()), [inputs()])
