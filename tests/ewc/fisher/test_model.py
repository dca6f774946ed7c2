"""The model and the world are as before: modes, buffers, grads, hooks, random numbers."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from support.fisher import Custom, assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ewc


class Counting(nn.Module):
    """Counts its calls in a buffer, by assignment and in place, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("assigned", torch.zeros(()))
        self.register_buffer("added", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.assigned = self.assigned + 1
        self.added += 1
        return x + 0 * torch.randn(x.shape)


def model() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), Counting(), nn.Dropout(0.5))
    return nn.Sequential(body, nn.Linear(6, 3))


def test_everything_is_left_as_it_was() -> None:
    net = model()
    net.train()
    net[0][3].eval()
    net(torch.randn(8, 4)).sum().backward()
    before = copy.deepcopy(net)
    buffers = {name: id(b) for name, b in net.named_buffers()}
    grads = {name: p.grad.clone() for name, p in net.named_parameters()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ewc.fisher_diagonal(net, [torch.randn(8, 4, generator=torch.Generator())], kind="sampled")
    assert torch.equal(torch.rand(3), expected)
    assert [m.training for m in net.modules()] == [m.training for m in before.modules()]
    assert {name: id(b) for name, b in net.named_buffers()} == buffers
    for name, value in before.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter.grad, grads[name])
        assert parameter.requires_grad
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks


def test_rows_rescaled_by_a_lookup_are_put_back() -> None:
    net = nn.Sequential(nn.Embedding(7, 4, max_norm=0.5), nn.Linear(4, 3))
    before = net[0].weight.detach().clone()
    ewc.fisher_diagonal(net, [torch.randint(7, (4, 5))], kind="sampled")
    assert torch.equal(net[0].weight, before)


def test_also_after_an_error() -> None:
    net = model().train()
    with pytest.raises(ValueError, match="NaN"):
        ewc.fisher_diagonal(net, [torch.full((3, 4), float("nan"))])
    assert all(m.training for m in net.modules())
    assert float(net[0][2].added) == 0


def test_dropout_and_batch_norm_are_in_eval_mode() -> None:
    net, x = model().double(), torch.randn(8, 4, dtype=torch.float64)
    net.train()
    fisher = ewc.fisher_diagonal(net, [x])
    assert_equal_fishers(fisher, ewc.fisher_diagonal(net.eval(), [x]))


def test_without_a_generator_the_draw_follows_the_global_seed() -> None:
    net, x = nn.Linear(4, 3), torch.randn(50, 4)
    torch.manual_seed(1)
    first = ewc.fisher_diagonal(net, [x], kind="sampled")["bias"]
    torch.manual_seed(1)
    assert torch.equal(ewc.fisher_diagonal(net, [x], kind="sampled")["bias"], first)
    torch.manual_seed(2)
    assert not torch.equal(ewc.fisher_diagonal(net, [x], kind="sampled")["bias"], first)


def test_a_compiled_model_gives_the_same() -> None:
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = ewc.fisher_diagonal(plain, [x])
    wrapped = torch.compile(plain, backend="eager")
    wrapped(x)
    assert_equal_fishers(ewc.fisher_diagonal(wrapped, [x]), expected)
    in_place = copy.deepcopy(plain)
    in_place.compile(backend="aot_eager")
    in_place(x)
    assert_equal_fishers(ewc.fisher_diagonal(in_place, [x]), expected)
    inside = nn.Sequential(torch.compile(copy.deepcopy(plain), backend="aot_eager"))
    inside(x)
    fisher = ewc.fisher_diagonal(inside, [x])
    for (_, actual), (_, right) in zip(fisher.items(), expected.items(), strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-9, atol=0)


def test_gradient_checkpointing_gives_the_same() -> None:
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)
    plain = nn.Sequential(body, head).double()
    checkpointed = Custom(
        lambda m, x: m.b(torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False)),
        a=body, b=head,
    )  # fmt: skip
    x = torch.randn(5, 4, dtype=torch.float64)
    fisher = ewc.fisher_diagonal(checkpointed, [x])
    expected = ewc.fisher_diagonal(plain, [x])
    for actual, right in zip(fisher.values(), expected.values(), strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-9, atol=0)


class StaysInTraining(nn.Module):
    """Batch statistics whatever the mode, as some models do in their `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.data += 1
        x = nn.functional.batch_norm(
            torch.cat([x, torch.ones_like(x)]),
            self.norm.running_mean,
            self.norm.running_var,
            training=True,
        )
        return x[: len(x) // 2]


def test_statistics_that_do_not_raise_the_version_are_put_back() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(StaysInTraining(), nn.Linear(4, 3))
    before = copy.deepcopy(net.state_dict())
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        ewc.fisher_diagonal(net, [torch.randn(6, 4)])
    for name, value in before.items():
        assert torch.equal(net.state_dict()[name], value), name


def test_untouched_buffers_are_not_written_to() -> None:
    net = model().eval()
    versions = {name: buffer._version for name, buffer in net.named_buffers()}
    ewc.fisher_diagonal(net, [torch.randn(8, 4)])
    for name, buffer in net.named_buffers():
        assert buffer._version == versions[name] or name.endswith("added")


def test_hooks_on_parameters_do_not_enter_the_fisher_whatever_the_batch_size() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).double(), torch.randn(6, 4, dtype=torch.float64)
    expected = ewc.fisher_diagonal(net, [x])
    net.weight.register_hook(lambda grad: 10 * grad)
    assert_equal_fishers(ewc.fisher_diagonal(net, [x]), expected)
    alone = [ewc.fisher_diagonal(net, [row[None]]) for row in x]
    mean = {name: sum(one[name] for one in alone) / 6 for name in expected}
    assert_equal_fishers(mean, expected)
    net(x).sum().backward()
    assert torch.allclose(net.weight.grad, 10 * x.sum(0).expand(3, -1))  # it is back


def test_a_shuffled_loader_gives_other_samples_every_time() -> None:
    torch.manual_seed(0)
    seen: list[list[float]] = []
    net = Custom(lambda m, x: seen[-1].extend(x[:, 0].tolist()) or m.a(x), a=nn.Linear(1, 3))
    data = TensorDataset(torch.arange(50.0).unsqueeze(1))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    for _ in range(2):
        seen.append([])
        ewc.fisher_diagonal(net, loader, max_samples=10)
    assert set(seen[0]) != set(seen[1])


class Merging(nn.Module):
    """Adds its low-rank part to the weight in eval mode, as loralib does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4), requires_grad=False)
        self.low = nn.Parameter(torch.randn(3, 1))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        if self.merged == mode:
            self.weight.data += (-1.0 if mode else 1.0) * self.low.data
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight if self.merged else self.weight + self.low).t()


def test_a_module_that_merges_its_weights_in_eval_mode() -> None:
    torch.manual_seed(0)
    net = Merging()
    before = net.weight.clone()
    fisher = ewc.fisher_diagonal(net, [torch.randn(6, 4)])
    assert bool((fisher["low"] > 0).all())
    assert torch.equal(net.weight, before)
    assert net.training
    assert not net.merged


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_flags_of_cudnn_are_the_user_s(
    recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag, value in {"deterministic": True, "allow_tf32": False, "benchmark": True}.items():
        monkeypatch.setattr(torch.backends.cudnn, flag, value)
    seen = []

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        flags = torch.backends.cudnn
        seen.append((flags.deterministic, flags.allow_tf32, flags.benchmark, flags.enabled))
        return m.linear(x)

    layers = {"linear": nn.Linear(4, 3)} | ({"unused": nn.LSTM(2, 2)} if recurrent else {})
    enabled = torch.backends.cudnn.enabled
    net = Custom(forward, **layers)
    ewc.fisher_diagonal(net, [torch.randn(5, 4)], parameters="linear.*")
    assert set(seen) == {(True, False, True, enabled and not recurrent)}
    assert torch.backends.cudnn.enabled == enabled


def test_buffers_that_appear_in_forward_are_gone() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("later", None)

        def forward(self, x: Tensor) -> Tensor:
            self.later = torch.ones(3)
            self.register_buffer("new", torch.ones(2))
            return x

    net = nn.Sequential(nn.Linear(4, 3), Lazy())
    before = list(net.state_dict())
    ewc.fisher_diagonal(net, [torch.randn(6, 4)])
    assert list(net.state_dict()) == before


def test_a_parameter_that_the_model_changes_is_named() -> None:
    net = Custom(
        lambda m, ids: nn.functional.embedding(ids, m.w, max_norm=0.1).sum(1),
        w=nn.Parameter(torch.randn(6, 3)),
    )
    with pytest.warns(ewc.EWCWarning, match="changed its parameter 'w' in place"):
        ewc.fisher_diagonal(net, [torch.randint(6, (5, 2))])


def test_a_compiled_function_within_a_model_gives_the_same() -> None:
    """Twice: compiled code keeps no graph for a second backward pass."""

    def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return nn.functional.layer_norm(x @ first, (8,)).tanh() @ second

    torch.manual_seed(0)
    parts = {"a": nn.Parameter(torch.randn(8, 8)), "b": nn.Parameter(torch.randn(8, 3))}
    x, compiled = torch.randn(6, 8), torch.compile(layers)
    expected = ewc.fisher_diagonal(Custom(lambda m, x: layers(x, m.a, m.b), **parts), [x])
    for _ in range(2):
        found = ewc.fisher_diagonal(Custom(lambda m, x: compiled(x, m.a, m.b), **parts), [x])
        assert_equal_fishers(found, expected)


def test_a_module_of_torchscript_without_parameters_is_fine() -> None:
    model, x = nn.Sequential(nn.Tanh(), nn.Linear(4, 3)).double(), torch.randn(5, 4).double()
    expected = ewc.fisher_diagonal(model, [x])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model[0] = torch.jit.script(nn.Tanh())
    assert_equal_fishers(ewc.fisher_diagonal(model, [x]), expected)


def test_a_module_of_torchscript_is_refused_by_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(4, 3))
    with pytest.raises(TypeError, match="1 is a module of TorchScript"):
        ewc.fisher_diagonal(nn.Sequential(nn.Tanh(), scripted), [torch.randn(2, 4)])


def halves(m: Custom, x: Tensor) -> Tensor:
    x /= 2
    return m.b(m.a(x).tanh())


def normalizes_large_ones(m: Custom, x: Tensor) -> Tensor:
    if x.abs().max() > 3:
        x.clamp_(-3, 3)
    return m.b(m.a(x).tanh())


def hides_a_feature(m: Custom, x: Tensor) -> Tensor:
    x[..., 0] = 0
    return m.b(m.gain(m.a(x)))  # a gain has no rule


@pytest.mark.parametrize("forward", [halves, normalizes_large_ones, hides_a_feature])
@pytest.mark.parametrize("sizes", [[1] * 12, [2, 3, 2, 3, 2], [12], [8, 4]])
def test_a_model_that_writes_to_its_inputs_gets_copies(
    forward: Callable[[Custom, Tensor], Tensor], sizes: list[int]
) -> None:
    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 5), gain=nn.PReLU(), b=nn.Linear(5, 3)).double()
    values = 2 * torch.randn(12, 4, dtype=torch.float64)
    x, y = torch.from_numpy(values.numpy().copy()), torch.randint(3, (12,))  # memory of NumPy
    expected = batch_of_one_fisher(model, (values.clone(),), y, the_target)
    batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
    for _ in range(2):
        assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)
        assert torch.equal(x, values)
    few = ewc.fisher_diagonal(model, batches, kind="empirical", max_samples=5)
    assert_equal_fishers(few, batch_of_one_fisher(model, (values[:5].clone(),), y[:5], the_target))
    ewc.fisher_diagonal(model, batches)
    assert torch.equal(x, values)


def test_a_callable_that_writes_to_the_targets_gets_copies() -> None:
    def masked(outputs: Tensor, targets: Tensor) -> Tensor:
        targets[targets < 0] = 0
        return outputs.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)

    def boxes(outputs: tuple[Tensor, Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
        for target in targets:
            target["box"] /= 10
        places = torch.stack([target["box"] for target in targets])
        return -(outputs[0] - places).square().sum(1)

    x, y = torch.randn(3, 4), torch.tensor([-1, 0, 2])
    ewc.fisher_diagonal(nn.Linear(4, 3), [(x, y)], kind="empirical", likelihood=masked)
    assert y.tolist() == [-1, 0, 2]

    def two(m: Custom, x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return m.a(x), x

    model, kept = Custom(two, a=nn.Linear(4, 3)), x.clone()
    targets = [{"box": torch.ones(3)} for _ in range(3)]
    ewc.fisher_diagonal(model, [(x, targets)], kind="empirical", likelihood=boxes)
    assert torch.equal(x, kept)
    assert all(bool((target["box"] == 1).all()) for target in targets)


class Remembering(nn.Module):
    """Keeps its hidden state from one batch to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden, state = self.layer(x.unsqueeze(1), self.state)
        self.state = state.detach()
        return self.head(hidden[:, 0])


NEIGHBORS = torch.eye(6).roll(1, 0)


@pytest.mark.parametrize(
    ("model", "came"),
    [
        (Custom(lambda m, x: m.a(x).squeeze(), a=nn.Linear(4, 3)), r"it returned \(3,\)"),
        (Remembering(), "RuntimeError: Expected hidden size"),
        (Custom(lambda m, x: m.a(x.view(6, 4)), a=nn.Linear(4, 3)), "RuntimeError: shape"),
        (Custom(lambda m, x: NEIGHBORS @ m.a(x), a=nn.Linear(4, 3)), "RuntimeError: mat1 and mat2"),
    ],
    ids=["squeeze", "state", "fixed size", "nodes of a graph"],
)
def test_a_model_that_takes_no_sample_alone_is_told_why_it_got_one(
    model: nn.Module, came: str
) -> None:
    told = f"sample 5 of batch 0 was run alone, to see whether its output depends.*{came}.*squeeze"
    with pytest.raises(ValueError, match=told):
        ewc.fisher_diagonal(model, [torch.randn(6, 4)])


def test_a_sample_alone_for_a_parameter_without_a_rule_says_so() -> None:
    runs: list[int] = []

    def forward(m: Custom, x: Tensor) -> Tensor:
        runs.append(len(x))
        if runs.count(1) == 4:  # the last sample, which is compared, and samples 0, 1 and 2
            raise RuntimeError("no more,\nplease")
        return m.a(m.gain(x))

    x = torch.randn(6, 4)
    told = r"sample 2 of batch 0 was run alone, because no rule covers 'gain.weight', and the "
    with pytest.raises(ValueError, match=told + "model failed: RuntimeError: no more, please"):
        ewc.fisher_diagonal(Custom(forward, gain=nn.PReLU(), a=nn.Linear(4, 3)), [x])


def test_a_batch_of_one_sample_is_named_as_such() -> None:
    model = Custom(lambda m, x: m.a(x).squeeze(), a=nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"batch 0, which has one sample, it returned \(3,\)"):
        ewc.fisher_diagonal(model, [torch.randn(1, 4)])
