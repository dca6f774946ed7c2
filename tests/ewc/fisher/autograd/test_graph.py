"""The graph of an output: its nodes and edges, and the paths of parameters through it."""

import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ewc.fisher.autograd.graph import Graph, PathNode, operation, signed


def graph_of(output: Tensor, **parameters: nn.Parameter) -> Graph:
    return Graph(output, {id(parameter): name for name, parameter in parameters.items()})


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def test_a_weight_used_twice_has_two_edges() -> None:
    w, x = parameter(3, 3), torch.randn(5, 3)
    output = x @ w @ w
    graph = graph_of(output, w=w)
    ((node, name),) = graph.parameters.items()
    assert name == "w"
    assert graph.nodes[node].variable is w
    assert len(graph.consumers[node]) == 2
    assert [slot for _, _, slot in graph.consumers[node]] == [1, 1]


def test_only_the_parameters_asked_for_are_named() -> None:
    w, b = parameter(4, 3), parameter(3)
    output = torch.addmm(b, torch.randn(5, 4), w)
    assert list(graph_of(output, b=b).parameters.values()) == ["b"]


def test_equal_computations_have_equal_keys() -> None:
    w = parameter(4, 4)

    def key(batch: int, twice: bool) -> object:
        hidden = torch.randn(batch, 4) @ w
        return graph_of(hidden @ w if twice else hidden.tanh(), w=w).key

    assert key(3, True) == key(7, True)
    assert key(3, True) != key(3, False)


def test_consumers_come_before_what_they_consume() -> None:
    w = parameter(3, 3)
    hidden = torch.randn(5, 3) @ w
    output = (hidden.tanh() + hidden.relu()) * hidden
    graph = graph_of(output, w=w)
    place = {node: i for i, node in enumerate(graph.consumers_first)}
    assert len(place) == len(graph.nodes)
    for node, edges in enumerate(graph.edges):
        assert all(place[node] < place[child] for child, _ in edges if child >= 0)


def test_used_results_of_a_node_with_several() -> None:
    w = parameter(3, 6)
    first, _, third = (torch.randn(5, 3) @ w).split(2, 1)
    output = first + third
    graph = graph_of(output, w=w)
    (split,) = [i for i in range(len(graph.nodes)) if graph.operation(i) == "Split"]
    assert graph.used[split] == [0, 2]
    assert tuple(graph.shape(split, 2)) == (5, 2)


def test_elements_are_those_of_results_without_parameters() -> None:
    w = parameter(8, 3)
    output = F.linear(torch.randn(5, 3), w).tanh()
    graph = graph_of(output, w=w)
    assert graph.elements == 2 * 5 * 8  # the product and the activation, not the transposed weight


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_results_are_known_to_be_nested() -> None:
    layer = nn.Linear(3, 2)
    nested = torch.nested.as_nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    output = torch.stack([row.sum(0) for row in layer(nested).unbind()])
    graph = graph_of(output, w=layer.weight)
    assert graph.nested
    assert graph.elements == sys.maxsize


def test_rounding_and_range_are_those_of_the_narrowest_types() -> None:
    w = parameter(3, 3)
    output = (torch.randn(5, 3) @ w).bfloat16().double()
    graph = graph_of(output, w=w)
    assert graph.rounding == torch.finfo(torch.bfloat16).eps
    assert graph.largest_number == torch.finfo(torch.bfloat16).max


def test_backward_gives_the_gradient_at_each_node() -> None:
    w, x = parameter(3, 2), torch.randn(5, 3)
    hidden = x @ w
    output = hidden.tanh()
    graph = graph_of(output, w=w)
    cotangent = torch.randn(5, 2)
    names = [graph.operation(i) for i in range(len(graph.nodes))]
    at_output, at_product = graph.backward(
        output, cotangent, [names.index("Tanh"), names.index("Mm")]
    )
    torch.testing.assert_close(at_output, cotangent)
    torch.testing.assert_close(at_product, cotangent * (1 - output.square()))


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w.t(),
        lambda w: w.transpose(-1, 0),
        lambda w: w.split(2, 1)[1],
        lambda w: w.split([1, 3], -1)[1],
        lambda w: w.view(2, 8),
        lambda w: w.unsqueeze(1),
        lambda w: w.double(),
        lambda w: w.clone(),
    ],
)
def test_a_path_node_views_a_buffer_as_it_views_the_parameter(view: object) -> None:
    w = parameter(4, 4)
    seen = view(w)
    output = seen.sum()
    graph = graph_of(output, w=w)
    (node,) = [
        i for i, edges in enumerate(graph.edges) if edges and edges[0][0] in graph.parameters
    ]
    number = seen.output_nr
    buffer = torch.randn(3, 4, 4)
    expected = torch.stack([view(one) for one in buffer])
    actual = PathNode(node, number, is_lookup=False).view(graph, buffer)
    torch.testing.assert_close(actual, expected.to(actual.dtype))


def test_reentrant_checkpoints_are_refused() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(5, 3, requires_grad=True)
    output = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        graph_of(output, w=layer.weight)


def test_names_of_operations() -> None:
    assert operation("AddmmBackward0") == "Addmm"
    assert operation("MulBackward") == ""  # a user's own torch.autograd.Function
    assert operation("AccumulateGrad") == ""


def test_negative_numbers_are_saved_as_unsigned() -> None:
    assert signed(2**64 - 1) == -1
    assert signed(3) == 3
