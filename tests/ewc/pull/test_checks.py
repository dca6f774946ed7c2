"""What a memory cannot pull on, and a strength that cannot work, are told once and in time."""

import copy
import warnings

import pytest
import torch
from support.memory import SAM, Plain, make_batches, make_model, move, one_step
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Adadelta, Adam, Optimizer, Rprop

from ewc.diagnostics import EWCWarning
from ewc.memory import EWC
from ewc.pull.checks import remaining_step_fraction


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
    assert told[0].filename.endswith("memory.py")  # where step() is called
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


def test_averaged_sgd_is_told_of_divergence_like_sgd() -> None:
    model = make_model()
    memory = held(model, strength=30.0)
    optimizer = ASGD(model.parameters(), lr=0.1)
    memory.attach(optimizer, how="gradient")
    with pytest.warns(
        EWCWarning, match=r"will diverge: lr · strength · precision is 3 in .*below 2"
    ):
        one_step(model, optimizer, make_batches(1)[0])


def test_sam_around_sgd_is_told_of_divergence_like_sgd() -> None:
    model = make_model()
    memory = held(model, strength=30.0)
    optimizer = SAM(model.parameters(), SGD, rho=0.05, lr=0.1)
    memory.attach(optimizer, how="gradient")
    nn.functional.cross_entropy(model(make_batches(1)[0][0]), make_batches(1)[0][1]).backward()
    optimizer.first_step()
    with pytest.warns(EWCWarning, match=r"will diverge: lr · strength · precision is 3 in"):
        optimizer.second_step()


@pytest.mark.parametrize("rate", [0.5, 0.15, 0.11])
def test_an_unknown_optimizer_that_diverges_is_told_while_its_weights_are_still_numbers(
    rate: float,
) -> None:
    """Its step is 2 · lr: with λP = 10 it diverges from lr = 0.1 on."""
    model = make_model()
    memory = held(model, strength=10.0)
    optimizer = Plain(model.parameters(), lr=rate)
    memory.attach(optimizer, how="gradient")
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        with pytest.raises(EWCWarning, match=r"how='gradient' diverges: the penalty grew"):
            steps(model, optimizer, 150)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def steps(model: nn.Module, optimizer: Optimizer, count: int) -> None:
    for _ in range(count):
        one_step(model, optimizer, make_batches(1)[0])


def warmed_up(step: int) -> float:
    return min(1.0, (step + 1) / 200)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Plain(p, lr=0.0499),
        lambda p: Adadelta(p, lr=1.0),
        lambda p: Rprop(p, lr=0.01),
        lambda p: LBFGS(p, lr=0.5, max_iter=3),
        lambda p: OwnMomentum(p, lr=0.02, momentum=0.95),
    ],
    ids=["plain", "adadelta", "rprop", "lbfgs", "momentum"],
)
@pytest.mark.parametrize("strength", [1e-6, 10.0])
def test_an_unknown_optimizer_that_only_moves_away_is_not_said_to_diverge(make, strength) -> None:
    """Also where a learning rate that warms up and momentum make it move ever faster at first."""
    model = make_model()
    memory = held(model, strength=strength)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmed_up)
    memory.attach(optimizer, how="gradient")
    inputs, targets = make_batches(1)[0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        for _ in range(400):
            closure()
            optimizer.step(closure)
            schedule.step()
        assert memory.estimated_rise() > 1e-6
        memory.anchor(1.0)  # the energy is 0 again, and grows from there
        for parameter in model.parameters():
            parameter.data += 1e-9
        for _ in range(100):
            closure()
            optimizer.step(closure)


class OwnMomentum(SGD):
    """A step of its own, so that nothing is known of it."""

    def step(self, closure=None):
        return super().step(closure)


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


def test_the_remaining_step_fraction_is_that_of_the_steps_taken() -> None:
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
        share = remaining_step_fraction(optimizer, memory._pull_state())
    assert share == pytest.approx(float(moved[True].abs().sum() / moved[False].abs().sum()))
    assert share < 0.9


@pytest.mark.parametrize(
    ("dtype", "how", "told"),
    [
        (torch.bfloat16, "proximal", 1),
        (torch.bfloat16, "gradient", 0),
        (torch.float32, "proximal", 0),
    ],
)
def test_weights_that_are_too_coarse_for_the_pull_are_named_once(dtype, how, told) -> None:
    model = make_model().to(dtype)
    memory, optimizer = held(model), SGD(model.parameters(), lr=0.01)
    memory.attach(optimizer, how=how)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            optimizer.step()
    named = ["'body.weight' is kept in bfloat16" in str(one.message) for one in caught]
    assert named == [True] * told
