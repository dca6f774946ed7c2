"""Synaptic intelligence is the path integral of the loss's own gradient, whatever moves weights."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from ewc.importances import SynapticIntelligence
from ewc.memory import EWC

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def make_batches(steps=8):
    torch.manual_seed(1)
    return [(torch.randn(10, 5).double(), torch.randint(3, (10,))) for _ in range(steps)]


def loss_gradients(model, x, y):
    """The gradient of the loss alone, on a path of its own: .grad is not touched."""
    return torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def train(model, optimizer, batches, gradients, path):
    """Train, and note gradients and weights in two lists, as the reference."""
    path.append(weights(model))
    for x, y in batches:
        gradients.append(loss_gradients(model, x, y))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        path.append(weights(model))


def reference(gradients, path, damping):
    importances = []
    for i in range(len(path[0])):
        omega = sum(
            -g[i] * (after[i] - before[i])
            for g, before, after in zip(gradients, path, path[1:], strict=False)
        )
        moved = path[-1][i] - path[0][i]
        importances.append(omega.clamp(min=0) / (moved.square() + damping))
    return importances


def assert_equal(precision, expected):
    for tensor, reference in zip(precision.values(), expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("how", [None, "proximal", "gradient"])
@pytest.mark.parametrize("watched_first", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_sum_over_the_path_with_any_optimizer_and_pull(name, watched_first, how):
    model = make_model()
    memory = EWC(model, strength=0.5)
    memory.anchor(1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    optimizer = OPTIMIZERS[name](model.parameters())
    steps = [
        lambda: SynapticIntelligence(model, optimizer, damping=0.01),
        lambda: None if how is None else memory.attach(optimizer, how=how),
    ]
    first, second = (step() for step in (steps if watched_first else steps[::-1]))
    watched = first if watched_first else second
    gradients, path = [], []
    train(model, optimizer, make_batches(), gradients, path)
    expected = reference(gradients, path, 0.01)
    assert all(bool((tensor > 0).any()) for tensor in expected)
    assert_equal(watched.precision(), expected)
    assert_equal(watched.precision(), expected)  # asking changes nothing
    assert watched.precision().keys() == dict(model.named_parameters()).keys()


def test_the_shares_of_all_weights_add_up_to_the_decrease_of_the_loss():
    model = make_model()
    ((x, y),) = make_batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watched = SynapticIntelligence(model, optimizer)
    before = cross_entropy(model(x), y).item()
    for _ in range(300):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    after = cross_entropy(model(x), y).item()
    shares = sum(float(t.sum()) for k, t in watched.state_dict().items() if k.startswith("path."))
    assert before - after > 0.03
    assert shares == pytest.approx(before - after, rel=2e-3)


def test_on_a_quadratic_it_is_half_of_the_curvature():
    curvature = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    model = nn.Linear(1, 3, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watched = SynapticIntelligence(model, optimizer, damping=1e-9)
    for _ in range(10_000):
        optimizer.zero_grad()
        (curvature / 2 * model.weight.flatten().square()).sum().backward()
        optimizer.step()
    found = watched.precision()["weight"].flatten()
    torch.testing.assert_close(found, curvature / 2, rtol=1e-2, atol=0)


@pytest.mark.parametrize("how", [None, "gradient"])
def test_a_closure_is_seen_at_every_evaluation_without_the_pull(how):
    model = make_model()
    memory = EWC(model, strength=0.5)
    memory.anchor(1.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    if how:
        memory.attach(optimizer, how=how)
    watched = SynapticIntelligence(model, optimizer)
    ((x, y),) = make_batches(1)
    gradients, path = [], []

    def closure():
        gradients.append(loss_gradients(model, x, y))
        path.append(weights(model))
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    path.append(weights(model))
    assert watched.steps == len(gradients) > 3
    assert_equal(watched.precision(), reference(gradients, path, 0.1))


def test_maximizing_counts_what_raises_the_objective():
    found = []
    for sign, maximize in ((1, False), (-1, True)):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
        watched = SynapticIntelligence(model, optimizer)
        for x, y in make_batches():
            optimizer.zero_grad()
            (sign * cross_entropy(model(x), y)).backward()
            optimizer.step()
        found.append(watched.precision())
    assert_equal(found[0], found[1].values())
    assert float(found[0]["0.weight"].sum()) > 0


def test_a_scaled_and_a_skipped_step_of_a_fused_optimizer():
    found = []
    for scale in (None, 1024.0):
        model = make_model().float()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        watched = SynapticIntelligence(model, optimizer)
        for number, (x, y) in enumerate(make_batches()):
            optimizer.zero_grad()
            loss = cross_entropy(model(x.float()), y)
            if scale is None:
                loss.backward()
                optimizer.step()
                continue
            (scale * loss).backward()
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(0.0)
            optimizer.step()
            if number == 3:  # a step that the scaler has the optimizer skip
                model[0].weight.grad.fill_(torch.inf)
                optimizer.found_inf = torch.tensor(1.0)
                optimizer.step()
        found.append(watched.precision())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-4, atol=1e-7)


def test_half_precision_is_summed_in_float32():
    model = make_model().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = SynapticIntelligence(model, optimizer)
    for x, y in make_batches():
        optimizer.zero_grad()
        cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()
    precision = watched.precision()
    assert all(tensor.dtype == torch.float32 for tensor in precision.values())
    EWC(model, strength=1.0).anchor(precision)


def test_sparse_gradients_and_weights_without_one():
    torch.manual_seed(0)
    model = nn.ModuleDict({"rows": nn.Embedding(6, 3, sparse=True), "unused": nn.Linear(2, 2)})
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = SynapticIntelligence(model, optimizer)
    before = model["rows"].weight.detach().clone()
    chosen = torch.tensor([1, 4, 4])
    mse_loss(model["rows"](chosen), torch.ones(3, 3).double(), reduction="sum").backward()
    gradient = model["rows"].weight.grad.to_dense()
    optimizer.step()
    precision = watched.precision()
    moved = model["rows"].weight.detach() - before
    expected = -gradient * moved / (moved.square() + 0.1)
    torch.testing.assert_close(precision["rows.weight"], expected)
    assert not precision["unused.weight"].any()


def test_restarting_forgets_the_path():
    model, batches = make_model(), make_batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = SynapticIntelligence(model, optimizer)
    train(model, optimizer, batches, [], [])
    watched.restart()
    with pytest.raises(RuntimeError, match="no step was seen"):
        watched.precision()
    gradients, path = [], []
    train(model, optimizer, batches, gradients, path)
    assert_equal(watched.precision(), reference(gradients, path, 0.1))


def test_removed_it_sees_no_more_steps():
    model, batches = make_model(), make_batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = SynapticIntelligence(model, optimizer)
    train(model, optimizer, batches[:3], [], [])
    watched.remove()
    path = watched.state_dict()
    train(model, optimizer, batches[3:], [], [])
    watched.remove()
    assert watched.steps == 3
    assert all(torch.equal(tensor, path[key]) for key, tensor in watched.state_dict().items())


def test_going_on_from_a_state_ends_where_the_whole_path_does():
    batches = make_batches()

    def start(state=None, model_state=None):
        model = make_model()
        if model_state is not None:
            model.load_state_dict(model_state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watched = SynapticIntelligence(model, optimizer)
        if state is not None:
            watched.load_state_dict(state)
        return model, optimizer, watched

    model, optimizer, whole = start()
    train(model, optimizer, batches, [], [])
    half_model, optimizer, half = start()
    train(half_model, optimizer, batches[:4], [], [])
    model, optimizer, rest = start(half.state_dict(), half_model.state_dict())
    train(model, optimizer, batches[4:], [], [])
    expected = whole.precision()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in rest.precision().items())


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    model = make_model()
    watched = SynapticIntelligence(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = watched.state_dict()
    fewer = {key: tensor for key, tensor in before.items() if key != "path.0.weight"}
    with pytest.raises(ValueError, match=r"'path\.0\.weight' differs"):
        watched.load_state_dict(fewer)
    with pytest.raises(ValueError, match=r"expected shape \(6,\) for 'path.0.bias', got \(7,\)"):
        watched.load_state_dict({**before, "steps": torch.tensor(5), "path.0.bias": torch.ones(7)})
    assert all(torch.equal(tensor, before[key]) for key, tensor in watched.state_dict().items())


def test_what_cannot_be_watched_is_refused():
    model = make_model()
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"expected an optimizer of '0\.weight'"):
        SynapticIntelligence(model, head)
    SynapticIntelligence(model, head, parameters="2.*")
    for damping in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="damping > 0"):
            SynapticIntelligence(model, head, damping=damping, parameters="2.*")


def test_a_parameter_that_was_replaced_is_reported():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = SynapticIntelligence(model, optimizer)
    train(model, optimizer, make_batches(1), [], [])
    model[2] = nn.Linear(6, 3).double()
    with pytest.raises(RuntimeError, match=r"'2\.weight' was replaced"):
        watched.precision()
