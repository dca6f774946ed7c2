"""Parameters are chosen by name, and a choice that cannot be meant is refused."""

import pytest
import torch
from torch import nn

from ewc import EWC, fisher_diagonal
from ewc.parameters import ModelParameters, at_least_float32, select_parameters, unwrap, widened

ALL = ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, ALL),
        ("*", ALL),
        ("body.*", ALL[:4]),
        ("!head.*", ALL[:4]),
        (["body.*", "!*.bias"], ["body.0.weight", "body.2.weight"]),
        (["!*.bias", "body.*"], ["body.0.weight", "body.2.weight"]),
        (("head.weight", "body.0.bias"), ["body.0.bias", "head.weight"]),
        (lambda name: name.endswith("weight"), [n for n in ALL if n.endswith("weight")]),
    ],
)
def test_selects_by_name_in_model_order(parameters, expected):
    net = Net()
    selected = select_parameters(net, parameters)
    assert list(selected) == expected
    assert all(selected[name] is net.get_parameter(name) for name in expected)


def test_a_one_shot_iterator_of_patterns_works():
    assert list(select_parameters(Net(), iter(["head.*", "!*.bias"]))) == ["head.weight"]


def test_frozen_parameters_are_never_selected():
    net = Net()
    net.body[0].requires_grad_(False)
    assert list(select_parameters(net)) == ALL[2:]
    assert list(select_parameters(net, lambda name: True)) == ALL[2:]
    with pytest.raises(ValueError, match=r"'body\.0\.\*' matches only frozen"):
        select_parameters(net, ["body.0.*", "head.*"])
    assert list(select_parameters(net, "!body.0.*")) == ALL[2:]


def test_a_pattern_without_match_names_the_closest_names():
    with pytest.raises(ValueError, match=r"'haed\.weight'.*closest: head\.weight"):
        select_parameters(Net(), "haed.weight")
    with pytest.raises(ValueError, match=r"'!haed\.\*'.*closest: head"):
        select_parameters(Net(), ["body.*", "!haed.*"])


@pytest.mark.parametrize("parameters", [[], ["head.*", "!head.*"], lambda name: False])
def test_an_empty_selection_is_refused(parameters):
    with pytest.raises(ValueError, match="at least one trainable parameter"):
        select_parameters(Net(), parameters)


def test_a_tied_parameter_appears_once():
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "out": nn.Linear(3, 5, bias=False)})
    net["out"].weight = net["embed"].weight
    assert list(select_parameters(net)) == ["embed.weight"]


def test_wrappers_do_not_change_the_names():
    net = Net()
    compiled = torch.compile(net, backend="eager")
    wrapped = nn.DataParallel(compiled)
    assert unwrap(net) is net
    assert unwrap(compiled) is net
    assert unwrap(wrapped) is net
    assert list(select_parameters(wrapped, "head.*")) == ALL[4:]


def test_what_is_optimized_are_the_sources_of_computed_weights():
    class Squared(ModelParameters):
        def selected(self):
            return {"a": self.model.weight**2, "b": self.model.bias}

        def sources(self):
            return {"a": (self.model.weight, frozen)}

    model, frozen = nn.Linear(2, 1), nn.Parameter(torch.ones(1), requires_grad=False)
    found = Squared(model, None).optimized()
    assert [id(p) for p in found] == [id(model.weight), id(model.bias)]
    assert [id(p) for p in ModelParameters(model, "bias").optimized()] == [id(model.bias)]


def test_a_tied_parameter_is_selected_by_any_of_its_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert list(select_parameters(model, "1.*")) == ["0.weight", "1.bias"]
    assert list(select_parameters(model, "!1.*")) == ["0.bias"]
    assert list(select_parameters(model, lambda name: name == "1.weight")) == ["0.weight"]


def test_frozen_weights_are_named_as_such():
    net = Net().requires_grad_(False)  # as merge_and_unload of PEFT leaves them
    with pytest.raises(ValueError, match=r"all parameters are frozen .*requires_grad_\(True\)"):
        select_parameters(net)
    with pytest.raises(ValueError, match=r"those of parameters=<function .* are frozen"):
        select_parameters(net, lambda name: name.startswith("head"))


def test_a_selection_of_nothing_is_not_called_frozen():
    with pytest.raises(ValueError, match="selects none"):
        select_parameters(Net(), lambda name: False)


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        net = Net()
    for use in (EWC, lambda model: fisher_diagonal(model, [torch.ones(2, 3)])):
        with pytest.raises(ValueError, match=r"'body\.0\.weight' is on the device 'meta'.* load"):
            use(net)
    net.to_empty(device="cpu")
    select_parameters(net)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.complex128, torch.complex128),
    ],
)
def test_types_are_raised_to_float32_and_not_lowered(
    dtype: torch.dtype, expected: torch.dtype
) -> None:
    assert at_least_float32(dtype) == expected
    assert widened(torch.ones(2, dtype=dtype)).dtype == expected


def test_a_tensor_that_is_wide_enough_is_not_copied() -> None:
    tensor = torch.ones(2)
    assert widened(tensor) is tensor
