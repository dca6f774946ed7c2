"""Parameters are chosen by name, and a choice that cannot be meant is refused."""

import pytest
import torch
from torch import nn

from ewc.parameters import ModelParameters, select_parameters, unwrap

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
