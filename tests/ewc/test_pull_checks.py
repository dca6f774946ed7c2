"""What a memory cannot pull on, and a strength that cannot work, are told once and in time."""

import copy
import warnings

import pytest
import torch
from support.small_memory import make_batches, make_model, move, one_step
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from ewc.memory import EWC
from ewc.pull_checks import surviving_share
from ewc.warnings import EWCWarning


def held(model: nn.Module, strength: float = 1.0, **options: object) -> EWC:
    memory = EWC(model, strength=strength, **options)
    memory.anchor(1.0)
    move(model, 1)
    return memory


def silent(model: nn.Module, *optimizers: Optimizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        for optimizer in optimizers:
            one_step(model, optimizer, make_batches(1)[0])


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_held_weights_of_an_optimizer_that_is_not_attached_are_named_once(how: str) -> None:
    model = make_model()
    memory = held(model)
    body, head = (SGD(part.parameters(), lr=0.1) for part in (model.body, model.head))
    memory.attach(body, how=how)
    with pytest.warns(
        EWCWarning, match=r"protects 'head\.weight', 'head\.bias', but no opt"
    ) as told:
        one_step(model, body, make_batches(1)[0])
    assert len(told) == 1
    assert told[0].filename.endswith("small_memory.py")  # where step() is called
    silent(model, body)
    memory.anchor(1.0)
    silent(model, body)
    memory.attach(head, how=how)
    silent(model, body, head)


def test_silent_where_nothing_is_missed() -> None:
    """Both attached; or what is missing frozen, not held at all, or of strength zero."""
    model = make_model()
    memory = held(model)
    body, head = (SGD(part.parameters(), lr=0.1) for part in (model.body, model.head))
    memory.attach(body)
    memory.attach(head)
    silent(model, body, head)
    for change in ("frozen", "left out", "precision 0", "strength 0"):
        model = make_model()
        memory = EWC(
            model,
            strength=0.0 if change == "strength 0" else 1.0,
            parameters="!head.*" if change == "left out" else None,
        )
        memory.anchor(0.0 if change == "precision 0" else 1.0)
        if change == "frozen":
            model.head.requires_grad_(False)
        optimizer = SGD(model.body.parameters(), lr=0.1)
        memory.attach(optimizer)
        silent(model, optimizer)


def test_a_parameter_replaced_after_attach_is_named() -> None:
    model = make_model()
    memory = held(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    silent(model, optimizer)
    model.head.bias = nn.Parameter(model.head.bias.detach().clone())
    with pytest.warns(EWCWarning, match=r"protects 'head\.bias', but .*they were replaced"):
        one_step(model, optimizer, make_batches(1)[0])
    silent(model, optimizer)


@pytest.mark.parametrize(
    ("options", "limit"), [({}, 2.0), ({"momentum": 0.9}, 3.8), ({"momentum": 0.5}, 3.0)]
)
def test_an_explicit_pull_that_will_diverge_is_told_before_it_acts(options, limit) -> None:
    model = make_model()
    memory = EWC(model, strength=1.0)
    precision = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    precision["head.weight"][1, 2] = 10.0
    memory.anchor(precision)
    move(model, 1)
    optimizer = SGD(model.parameters(), lr=0.1, **options)
    memory.attach(optimizer, how="gradient")
    memory.strength = 0.98 * limit
    silent(model, optimizer)
    memory.strength = 1.02 * limit
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        message = rf"is {1.02 * limit:.3g} in 'head\.weight' and must stay below {limit:.3g} .*prox"
        with pytest.raises(EWCWarning, match=message):
            one_step(model, optimizer, make_batches(1)[0])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    silent(model, optimizer)  # once


def test_a_learning_rate_that_grows_into_divergence_is_told() -> None:
    model = make_model()
    memory = held(model, strength=10.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer, how="gradient")
    silent(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.3
    with pytest.warns(EWCWarning, match="is 3 in"):
        one_step(model, optimizer, make_batches(1)[0])


def test_explicit_pulls_of_several_memories_diverge_by_their_sum() -> None:
    model = make_model()
    memories = [held(model, strength=12.0), held(model, strength=12.0)]
    optimizer = SGD(model.parameters(), lr=0.1)
    memories[0].attach(optimizer, how="gradient")
    silent(model, optimizer)
    memories[1].attach(optimizer, how="gradient")
    with pytest.warns(EWCWarning, match=r"is 2\.4 in"):
        one_step(model, optimizer, make_batches(1)[0])


def test_optimizers_that_divide_by_the_gradient_are_not_said_to_diverge() -> None:
    model = make_model()
    memory = held(model, strength=1e6)
    optimizer = Adam(model.parameters(), lr=0.1)
    memory.attach(optimizer, how="gradient")
    silent(model, optimizer)


@pytest.mark.parametrize("make", [SGD, Adam])
def test_a_strength_at_which_nearly_all_stands_still_is_told_once(make) -> None:
    model = make_model()
    memory = held(model, strength=0.1)
    optimizer = make(model.parameters(), lr=0.01)
    memory.attach(optimizer)
    silent(model, optimizer)
    memory.strength = 1e6
    with pytest.warns(EWCWarning, match=r"undoes (9\d\.\d|100\.0)% .*strength 1e\+06") as told:
        one_step(model, optimizer, make_batches(1)[0])
    assert len(told) == 1
    memory.anchor(1.0)
    silent(model, optimizer)
    second = make(model.parameters(), lr=0.01)
    memory.attach(second)
    silent(model, second)


def test_a_rate_that_grows_from_nothing_is_looked_at_again() -> None:
    """As in a warm-up: at its first step nothing is undone yet."""
    model = make_model()
    memory = held(model, strength=1e6)
    optimizer = SGD(model.parameters(), lr=1e-12)
    memory.attach(optimizer)
    silent(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.warns(EWCWarning, match="stand still"):
        one_step(model, optimizer, make_batches(1)[0])


def test_a_frozen_trunk_under_a_free_head_is_no_standstill() -> None:
    model = make_model()
    memory = held(model, strength=1e9, parameters="!head.*")
    optimizer = SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    silent(model, optimizer)


def test_the_surviving_share_is_that_of_the_steps_taken() -> None:
    """Against the steps themselves, with and without the pull, from the anchor."""
    moved: dict[bool, Tensor] = {}
    for pulled in (True, False):
        model = make_model()
        memory = EWC(model, strength=3.0)
        generator = torch.Generator().manual_seed(0)
        memory.anchor(
            {
                name: torch.rand(p.shape, generator=generator, dtype=p.dtype)
                for name, p in model.named_parameters()
            }
        )
        optimizer = SGD(model.parameters(), lr=0.7)
        if pulled:
            memory.attach(optimizer)
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        one_step(model, optimizer, make_batches(1)[0])
        moved[pulled] = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        share = surviving_share(optimizer, memory._fit_wells())
    assert share == pytest.approx(float(moved[True].abs().sum() / moved[False].abs().sum()))
    assert share < 0.9


def test_weights_that_are_too_coarse_for_the_pull_are_named_once() -> None:
    model = make_model().bfloat16()
    memory, optimizer = held(model), SGD(model.parameters(), lr=0.01)
    memory.attach(optimizer)
    gradients(model)
    with pytest.warns(EWCWarning, match="'body.weight' is kept in bfloat16"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        optimizer.step()


@pytest.mark.parametrize(
    ("dtype", "how"), [(torch.bfloat16, "gradient"), (torch.float32, "proximal")]
)
def test_weights_that_are_fine_enough_for_the_pull_are_not_named(
    dtype: torch.dtype, how: str
) -> None:
    model = make_model().to(dtype)
    memory, optimizer = held(model), SGD(model.parameters(), lr=0.01)
    memory.attach(optimizer, how=how)
    gradients(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        optimizer.step()


def gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
