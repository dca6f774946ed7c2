"""One well equals the sum of many, and follows the parameters it holds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ewc.curvature.tasks import TaskWells
from ewc.curvature.wells import Well, add, check_precision, energy, fitted, merged

SIZE = 4
finite = st.floats(-10, 10, width=32)
entries = st.just(0.0) | st.floats(2**-20, 1024, width=32)
precisions = st.lists(entries, min_size=SIZE, max_size=SIZE)
anchors = st.lists(finite, min_size=SIZE, max_size=SIZE)
wells = st.lists(st.tuples(precisions, anchors), min_size=1, max_size=6)


def make(precision: list[float], anchor: list[float], dtype: torch.dtype = torch.float64) -> Well:
    return Well(
        {"w": torch.tensor(precision, dtype=dtype)}, {"w": torch.tensor(anchor, dtype=dtype)}
    )


def separate(pairs: list[tuple[list[float], list[float]]], theta: Tensor) -> Tensor:
    terms = [
        (torch.tensor(f, dtype=theta.dtype) * (theta - torch.tensor(a, dtype=theta.dtype)) ** 2)
        for f, a in pairs
    ]
    return torch.stack(terms).sum()


@given(wells, anchors)
def test_the_merged_energy_is_the_sum_in_value_and_gradient(pairs, point):
    theta = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    well = merged((make(*pair) for pair in pairs), decay=1.0)
    torch.testing.assert_close(
        torch.autograd.grad(energy(well, {"w": theta}), theta),
        torch.autograd.grad(separate(pairs, theta), theta),
        rtol=1e-9,
        atol=1e-9,
    )
    torch.testing.assert_close(
        energy(well, {"w": theta}), separate(pairs, theta), rtol=1e-9, atol=1e-12
    )


@given(st.integers(0, 2**31))
def test_float32_does_not_cancel(seed):
    """Weights near 1 and 1e-3 apart: ΣFθ² − 2θΣFθ* + ΣFθ*² would keep about one digit."""
    generator = torch.Generator().manual_seed(seed)
    points = (1 + 1e-3 * torch.randn(5, 50, generator=generator)).float()
    precisions = 0.1 + torch.rand(4, 50, generator=generator)
    pairs = [(f.tolist(), a.tolist()) for f, a in zip(precisions, points[1:], strict=True)]
    well = merged((make(*pair, dtype=torch.float32) for pair in pairs), decay=1.0)
    value = energy(well, {"w": points[0]}).double()
    torch.testing.assert_close(value, separate(pairs, points[0].double()), rtol=1e-4, atol=0)


@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1e-5, 1e-6]), st.integers(2, 30))
def test_float32_is_as_good_as_separate_penalties_a_few_roundings_apart(seed, apart, tasks):
    """At 1e-6 the rounding of the mean anchor alone would be worth up to a tenth of a distance."""
    generator = torch.Generator().manual_seed(seed)
    points = 1 + apart * torch.randn(tasks + 1, 50, generator=generator)
    precisions = torch.rand(tasks, 50, generator=generator)
    pairs = [(f.tolist(), a.tolist()) for f, a in zip(precisions, points[1:], strict=True)]
    well = merged((make(*pair, dtype=torch.float32) for pair in pairs), decay=1.0)
    theta = points[0].clone().requires_grad_()
    exact = points[0].double().requires_grad_()
    value, expected = energy(well, {"w": theta}), separate(pairs, exact)
    torch.testing.assert_close(value.double(), expected, rtol=3e-6, atol=0)
    (gradient,) = torch.autograd.grad(value, theta)
    (gradient_expected,) = torch.autograd.grad(expected, exact)
    error = (gradient.double() - gradient_expected).abs().max()
    assert error <= 3e-6 * gradient_expected.abs().max()


@given(wells, st.floats(0, 0.99), anchors)
def test_decay_is_online_ewc(pairs, decay, point):
    """Schwarz et al. 2018: F* <- γ F* + F, anchored at the last solution."""
    theta = torch.tensor(point, dtype=torch.float64)
    running = torch.zeros(SIZE, dtype=torch.float64)
    for precision, anchor in pairs:
        running = decay * running + torch.tensor(precision, dtype=torch.float64)
        last = torch.tensor(anchor, dtype=torch.float64)
    well = merged((make(*pair) for pair in pairs), decay=decay)
    torch.testing.assert_close(
        energy(well, {"w": theta}), (running * (theta - last) ** 2).sum(), rtol=1e-12, atol=1e-12
    )


def test_wells_of_different_parameters_stand_side_by_side():
    a = Well({"a": torch.tensor([1.0])}, {"a": torch.tensor([2.0])}, 3.0)
    b = Well({"b": torch.tensor([4.0])}, {"b": torch.tensor([5.0])}, 6.0)
    theta = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    assert energy(add(a, b), theta).item() == 1.0 + 3.0 + 4.0 * 16.0 + 6.0


@given(
    old=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    growth=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_a_grown_parameter_is_held_on_its_leading_block_alone(old, growth, seed):
    generator = torch.Generator().manual_seed(seed)
    well = Well(
        {"w": torch.rand(old, generator=generator)}, {"w": torch.randn(old, generator=generator)}
    )
    new = [size + more for size, more in zip(old, growth, strict=False)]
    theta = torch.randn(new, generator=generator, requires_grad=True)
    following = fitted(well, {"w": theta})
    block = tuple(slice(size) for size in old)
    held = well.precision["w"] * (theta[block] - well.anchor["w"]) ** 2
    torch.testing.assert_close(energy(following, {"w": theta}), held.sum())
    (gradient,) = torch.autograd.grad(energy(following, {"w": theta}), theta)
    free = torch.ones(new, dtype=torch.bool)
    free[block] = False
    assert not gradient[free].any()


def test_a_well_that_fits_is_returned_as_it_is():
    well = make([1.0] * SIZE, [0.0] * SIZE)
    assert fitted(well, {"w": torch.zeros(SIZE, dtype=torch.float64)}) is well


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3,), (3, 3, 1), ()])
def test_a_parameter_that_shrank_or_changed_rank_is_named(shape):
    well = Well({"w": torch.ones(3, 3)}, {"w": torch.ones(3, 3)})
    with pytest.raises(ValueError, match=r"'w'.*\(3, 3\) to \("):
        fitted(well, {"w": torch.zeros(shape)})


def test_a_parameter_that_vanished_is_named():
    with pytest.raises(ValueError, match="protects 'w', which the model no longer has"):
        fitted(make([1.0] * SIZE, [0.0] * SIZE), {})


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_a_parameter_that_peft_wrapped_since_is_named_with_what_to_do(prefix):
    well = Well({"net.q.weight": torch.ones(3)}, {"net.q.weight": torch.ones(3)})
    now = {f"{prefix}net.q.base_layer.weight": torch.ones(3), "net.q.lora_A.weight": torch.ones(2)}
    with pytest.raises(ValueError, match=r"PEFT has wrapped .* get_peft_model first .*LoraEWC"):
        fitted(well, now)


def test_wells_follow_the_type_of_the_parameters_but_not_below_float32():
    well = make([1.0] * SIZE, [0.0] * SIZE, torch.float32)
    assert fitted(well, {"w": torch.zeros(SIZE, dtype=torch.bfloat16)}) is well
    widened = fitted(well, {"w": torch.zeros(SIZE, dtype=torch.float64)})
    assert widened.precision["w"].dtype == widened.anchor["w"].dtype == torch.float64


def test_wells_follow_the_device_of_the_parameters():
    """The meta device stands for any other one: it is there on every machine."""
    well = make([1.0] * SIZE, [0.0] * SIZE)
    moved = fitted(well, {"w": torch.zeros(SIZE, dtype=torch.float64, device="meta")})
    assert moved.precision["w"].device.type == moved.anchor["w"].device.type == "meta"


def test_a_complex_parameter_is_refused_by_name():
    weights = {"w": torch.zeros(2, dtype=torch.complex64)}
    with pytest.raises(TypeError, match="complex parameter is not defined here: leave out 'w'"):
        check_precision({"w": torch.ones(2)}, weights)


PARAMETERS = {"w": torch.zeros(2)}


def well(precision: float, anchor: float = 0.0) -> Well:
    return Well({"w": torch.full((2,), precision)}, {"w": torch.full((2,), anchor)})


def filled(*tasks: str, **options: object) -> TaskWells:
    wells = TaskWells(**{"decay": 1.0, "keep_tasks": True, **options})
    for number, task in enumerate(tasks, 1):
        wells = wells.add(task, well(10.0**number), PARAMETERS)
    return wells


def test_kept_wells_are_stored_on_the_device_asked_for() -> None:
    wells = filled("A", storage=torch.device("meta"))
    assert wells.kept["A"].precision["w"].device.type == "meta"
    assert wells.total.precision["w"].device.type == "cpu"


def test_fitting_is_the_identity_where_nothing_changed() -> None:
    wells = filled("A", "B")
    assert wells.fitted(PARAMETERS) is wells


def test_fitting_follows_a_parameter_that_grew() -> None:
    grown = {"w": torch.zeros(3)}
    wells = filled("A", "B").fitted(grown)
    assert wells.active.precision["w"].tolist() == [110.0, 110.0, 0.0]
    assert wells.total is wells.active
    assert wells.kept["A"].precision["w"].shape == (2,)
    everything = wells.all_fitted(grown)
    assert everything.kept["A"].precision["w"].tolist() == [10.0, 10.0, 0.0]
