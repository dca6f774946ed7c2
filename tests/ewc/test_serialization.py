"""A memory saved is a memory loaded, bit for bit, and only into the model it belongs to."""

import io
import json

import pytest
import safetensors.torch
import torch
from torch import nn

from ewc.memory import EWC


def make_model(hidden=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def filled(model, **options):
    memory = EWC(model, **{"strength": 0.1, "decay": 1.0, **options})
    for seed in range(3):
        shake(model, seed)
        generator = torch.Generator().manual_seed(seed)
        precision = {
            name: torch.rand(p.shape, generator=generator) for name, p in model.named_parameters()
        }
        memory.anchor(precision, task=f"täsk {seed}")
    shake(model, 9)
    return memory


def shake(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator))


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(state):
    return safetensors.torch.load(safetensors.torch.save(state))


@pytest.mark.parametrize("through", [dict, through_torch, through_safetensors])
@pytest.mark.parametrize("options", [{}, {"decay": 0.3}, {"keep_tasks": True}])
def test_a_memory_survives_the_disk_bit_for_bit(through, options):
    model = make_model()
    memory = filled(model, **options)
    state = through(memory.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())

    fresh = EWC(model, strength=1.0, keep_tasks=options.get("keep_tasks", False))
    fresh.load_state_dict(state)
    assert (fresh.strength, fresh.decay, fresh.tasks) == (0.1, memory.decay, memory.tasks)
    assert torch.equal(fresh.penalty(), memory.penalty())

    for each in (memory, fresh):
        if options.get("keep_tasks"):
            each.forget("täsk 1")
        each.anchor(2.0, task="next")
    shake(model, 10)
    assert torch.equal(fresh.penalty(), memory.penalty())


def test_the_state_is_a_copy_both_ways():
    model = make_model()
    memory = filled(model)
    before = memory.penalty()
    state = memory.state_dict()
    fresh = EWC(model, strength=1.0)
    fresh.load_state_dict(state)
    for value in state.values():
        value.zero_()
    assert torch.equal(memory.penalty(), before)
    assert torch.equal(fresh.penalty(), before)


def test_an_empty_memory_can_be_saved_too():
    model = make_model()
    fresh = EWC(model, strength=1.0)
    fresh.load_state_dict(through_safetensors(EWC(model, strength=2.0).state_dict()))
    assert (fresh.strength, fresh.tasks) == (2.0, ())


def test_a_head_that_grew_before_saving_is_loaded_grown():
    model = make_model()
    memory = filled(model, keep_tasks=True)
    model[2] = nn.Linear(5, 7)
    fresh = EWC(model, strength=1.0, keep_tasks=True)
    fresh.load_state_dict(through_safetensors(memory.state_dict()))
    assert torch.equal(fresh.penalty(), memory.penalty())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_model(hidden=6), r"'0.weight' was of shape \(5, 4\) and is of shape \(6, 4\)"),
        (make_model(hidden=4), r"'0.weight' was of shape \(5, 4\) and is of shape \(4, 4\)"),
        (nn.Sequential(nn.Linear(4, 5)), r"'2.weight' was of shape \(3, 5\) and is absent"),
    ],
)
def test_another_architecture_is_refused_by_the_first_mismatch(other, message):
    state = filled(make_model()).state_dict()
    memory = EWC(other, strength=1.0, decay=0.5)
    memory.anchor(1.0, task="own")
    with pytest.raises(ValueError, match=message):
        memory.load_state_dict(state)
    assert (memory.strength, memory.decay, memory.tasks) == (1.0, 0.5, ("own",))


def test_a_head_left_out_may_differ():
    trunk = make_model()
    memory = EWC(trunk, strength=1.0, parameters="!2.*")
    memory.anchor(1.0, task="A")
    state = memory.state_dict()
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 9))
    fresh = EWC(other, strength=1.0, parameters="!2.*")
    fresh.load_state_dict(state)
    assert fresh.tasks == ("A",)


def added(model):
    model.append(nn.Linear(3, 3))


def removed(model):
    del model[1]


def reshaped(model):
    model[1] = nn.Linear(4, 9)
    for p in model[1].parameters():
        p.requires_grad_(False)


@pytest.mark.parametrize("change", [added, removed, reshaped])
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_parameters_that_are_not_held_may_differ(change, keep_tasks):
    """Frozen when the memory was filled, they are matched by its selection and yet not held."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5))
    for p in model[1].parameters():
        p.requires_grad_(False)
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    memory.anchor(1.0, task="A")
    state = memory.state_dict()
    change(model)
    fresh = EWC(model, strength=2.0, keep_tasks=keep_tasks)
    fresh.load_state_dict(state)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert fresh.tasks == ("A",)
    assert fresh.penalty().item() == pytest.approx(20 / 2)


def test_a_state_without_remainders_can_be_read():
    """Format 1, of version 0.1: it names all shapes and has no remainders."""
    model = make_model()
    state = filled(model).state_dict()
    values = json.loads(bytes(state["values"].tolist()))
    values |= {"format": 1, "shapes": {name: list(p.shape) for name, p in model.named_parameters()}}
    old = {key: tensor for key, tensor in state.items() if ".remainder." not in key}
    old["values"] = torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)
    fresh = EWC(model, strength=1.0)
    fresh.load_state_dict(old)
    torch.testing.assert_close(fresh.penalty(), filled_penalty(state, model))


def filled_penalty(state, model):
    memory = EWC(model, strength=1.0)
    memory.load_state_dict(state)
    return memory.penalty()


def test_states_of_another_kind_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match="state of an EWC memory"):
        EWC(model, strength=1.0).load_state_dict(model.state_dict())
    incomplete = filled(model).state_dict()
    del incomplete["total.anchor.0.weight"]
    with pytest.raises(ValueError, match="the state is incomplete"):
        EWC(model, strength=1.0).load_state_dict(incomplete)
    with pytest.raises(ValueError, match="keep_tasks=False, not True"):
        EWC(model, strength=1.0, keep_tasks=True).load_state_dict(filled(model).state_dict())
