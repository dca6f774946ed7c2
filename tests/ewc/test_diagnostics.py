"""A memory that cannot work says so, and one that can is silent."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ewc import EWC, EWCWarning


def batches(n=8, features=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, features, generator=generator)
    return [(x, torch.randint(2, (n,), generator=generator))]


@pytest.fixture
def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def move(small):
    with torch.no_grad():
        small[0].weight[0, 0] += 0.1


def test_a_fisher_of_zeros_is_told(small):
    for p in small.parameters():
        nn.init.zeros_(p)
    small[2].bias.requires_grad_(False)
    with pytest.warns(EWCWarning, match="zero for every weight"):
        EWC(small, strength=1.0).consolidate(batches())


def test_a_dead_layer_is_named(small):
    nn.init.constant_(small[0].bias, -100.0)
    with pytest.warns(EWCWarning, match="zero for all of 0: "):
        EWC(small, strength=1.0).consolidate(batches())


@pytest.mark.parametrize(("decay", "told"), [(1.0, []), (0.5, []), (0.0, ["heads.A"])])
def test_a_head_that_an_earlier_task_holds_is_not_named(decay, told):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({task: nn.Linear(3, 2) for task in "AB"})

        def forward(self, x):
            return self.heads[self.task](x)

    small = Heads()
    memory = EWC(small, strength=1.0, decay=decay)
    small.task = "A"
    with pytest.warns(EWCWarning, match=r"zero for all of heads\.B: "):
        memory.consolidate(batches(), task="A")
    small.task = "B"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memory.consolidate(batches(), task="B")
    assert [str(one.message).split(":")[0].removeprefix("the Fisher is zero for all of ")
            for one in caught] == told  # fmt: skip


def test_weights_that_moved_without_any_pull_are_told(small):
    memory = EWC(small, strength=1.0)
    memory.consolidate(batches())
    move(small)
    with pytest.warns(EWCWarning, match="nothing pulled") as caught:
        memory.consolidate(batches())
    assert caught[0].filename == __file__


def test_an_optimizer_that_is_not_the_attached_one_is_told(small):
    memory = EWC(small, strength=1.0)
    memory.attach(torch.optim.SGD(small.parameters(), lr=0.1))
    memory.consolidate(batches())
    move(small)
    with pytest.warns(EWCWarning, match="nothing pulled"):
        memory.consolidate(batches())


@pytest.mark.parametrize("use", ["attach", "penalty", "strength 0", "still"])
def test_silent_when_something_pulled_or_nothing_moved(small, use):
    memory = EWC(small, strength=0.0 if use == "strength 0" else 1.0)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        memory.consolidate(batches())
        if use in ("attach", "strength 0"):
            memory.attach(optimizer)
            optimizer.step()
        if use == "penalty":
            memory.penalty().backward()
        if use != "still":
            move(small)
        memory.consolidate(batches())
    assert len(memory.tasks) == 2


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))


def batch(labels: range, samples: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return x, torch.randint(labels.start, labels.stop, (samples,), generator=generator)


def one_step(model: nn.Module, memory: EWC, penalty: bool = False, **attach) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = memory.attach(optimizer, **attach)
    loss = model(batch(range(5))[0]).square().mean()
    (loss + memory.penalty() if penalty else loss).backward()
    optimizer.step()
    handle.remove()


def told(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(one.message) for one in caught if issubclass(one.category, EWCWarning)]


# replaced heads


@pytest.mark.parametrize("outputs", [5, 8])
def test_a_replaced_head_is_told_once_at_the_first_step(model, outputs):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(5))])
    model[2] = nn.Linear(16, outputs)
    messages = told(lambda: one_step(model, memory))
    assert len(messages) == 1
    assert messages[0].startswith("'2.weight', '2.bias' are new parameters with other weights")
    assert "EWC(model, parameters='!2.*')" in messages[0]
    assert told(lambda: one_step(model, memory)) == []


def test_a_replaced_head_is_told_by_penalty_too(model):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(5))])
    model[2] = nn.Linear(16, 5)
    with pytest.warns(EWCWarning, match="are new parameters"):
        memory.penalty().backward()


@pytest.mark.parametrize("outputs", [5, 8])
def test_a_head_that_grew_or_was_copied_is_not_told(model, outputs):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(5))])
    head = nn.Linear(16, outputs)
    with torch.no_grad():
        head.weight[:5] = model[2].weight + 0.01
        head.bias[:5] = model[2].bias
    model[2] = head
    assert told(lambda: one_step(model, memory)) == []


def test_a_head_that_is_left_out_or_trained_far_away_is_not_told(model):
    memory = EWC(model, strength=1.0, parameters="!2.*")
    memory.consolidate([batch(range(5))])
    model[2] = nn.Linear(16, 5)
    assert told(lambda: one_step(model, memory)) == []
    with torch.no_grad():
        model[0].weight.neg_()  # the same parameter, with other weights
    assert told(lambda: one_step(model, memory)) == []


def test_a_head_replaced_after_loading_is_told(model, tmp_path):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(5))])
    memory.save(tmp_path / "memory.safetensors")
    loaded = EWC.load(tmp_path / "memory.safetensors", model)
    model[2] = nn.Linear(16, 5)
    assert "are new parameters" in told(lambda: one_step(model, loaded))[0]


# class-incremental learning


def test_new_classes_at_a_shared_head_are_told(model):
    memory = EWC(model, strength=1.0)
    assert told(lambda: memory.consolidate([batch(range(2))])) == []
    one_step(model, memory)
    messages = told(lambda: memory.consolidate([batch(range(2, 5))]))
    assert len(messages) == 1
    assert "all labels of this task (2, 3, 4) are new, those before were 0, 1" in messages[0]
    assert "class-incremental" in messages[0]


def test_new_classes_are_told_after_loading(model, tmp_path):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(2))])
    memory.save(tmp_path / "memory.safetensors")
    loaded = EWC.load(tmp_path / "memory.safetensors", model)
    assert "class-incremental" in told(lambda: loaded.consolidate([batch(range(2, 5))]))[0]


def test_labels_are_read_from_mappings_too():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x):
            return self.layer(x)

    memory = EWC(Classifier(), strength=1.0)
    for labels, count in ((range(2), 0), (range(2, 5), 1)):
        x, y = batch(labels)
        batches = [{"x": x, "labels": y}]
        assert len(told(lambda batches=batches: memory.consolidate(batches))) == count


def test_the_same_or_some_old_classes_are_not_told(model):
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(3))])
    assert told(lambda: memory.consolidate([batch(range(2, 5))])) == []
    assert told(lambda: memory.consolidate([batch(range(3))])) == []


def test_heads_of_their_own_and_masked_outputs_are_not_told(model):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.classes = model, range(2)

        def forward(self, x):
            mask = torch.full((5,), -1e9)
            mask[list(self.classes)] = 0.0
            return self.body(x) + mask

    masked = Masked()
    memory = EWC(masked, strength=1.0)
    memory.consolidate([batch(masked.classes)])
    masked.classes = range(2, 5)
    assert told(lambda: memory.consolidate([batch(masked.classes)])) == []

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5)])

        def forward(self, x, task):
            return self.heads[task[0]](x)

    memory = EWC(Heads(), strength=1.0)
    for task, labels in enumerate((range(2), range(2, 5))):
        x, y = batch(labels)
        given = [((x, (task,)), y)]
        messages = told(lambda given=given: memory.consolidate(given))
        assert not any("class-incremental" in message for message in messages)


def test_a_body_with_heads_outside_of_the_memory_is_not_told(model):
    memory = EWC(model, strength=1.0, parameters="0.*")
    memory.consolidate([batch(range(2))])
    assert told(lambda: memory.consolidate([batch(range(2, 5))])) == []


# two pulls at once


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_a_penalty_in_the_loss_beside_an_attached_pull_is_told_once(model, how):
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    messages = told(lambda: one_step(model, memory, penalty=True, how=how))
    assert len(messages) == 1
    assert "it pulls twice" in messages[0]
    assert told(lambda: one_step(model, memory, penalty=True, how=how)) == []


def test_a_penalty_that_is_only_displayed_is_not_told(model):
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)

    def train():
        print(memory.penalty().item())
        one_step(model, memory)

    assert told(train) == []


def test_a_penalty_alone_is_not_told(model):
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        (cross_entropy(model(batch(range(5))[0]), batch(range(5))[1]) + memory.penalty()).backward()
        optimizer.step()

    assert told(train) == []


# buffers that are no statistics


class Offset(nn.Module):
    def __init__(self, persistent: bool):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.register_buffer("offset", torch.zeros(5), persistent=persistent)

    def forward(self, x):
        return self.layer(x) + self.offset


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_of_the_state_that_moved_is_told(persistent):
    model = Offset(persistent)
    memory = EWC(model, strength=1.0)
    memory.consolidate([batch(range(5))])
    model.offset += 1
    messages = told(lambda: one_step(model, memory))
    assert len(messages) == persistent  # others are computed again when they are needed
    assert all("the buffers 'offset' moved" in message for message in messages)
    assert all("freeze them" in message for message in messages)


def test_buffers_are_read_at_few_steps(model, monkeypatch):
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    reads = []
    check = type(memory._buffer_check).check
    monkeypatch.setattr(
        type(memory._buffer_check), "check", lambda *args: reads.append(1) or check(*args)
    )
    for _ in range(100):
        memory.penalty().backward()
    assert len(reads) == 7  # after 1, 2, 4, ..., 64 steps


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def labeled(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 10, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(10, 4, generator=torch.Generator().manual_seed(99))
    return x, (x @ weight).argmax(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    model.train()
    for _ in range(8):
        for inputs, labels in zip(x.split(50), y.split(50), strict=True):
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())


def statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def unchanged(model: nn.Module, before: list[Tensor]) -> bool:
    return all(map(torch.equal, model.buffers(), before))


def remembered(**options) -> tuple[nn.Sequential, EWC]:
    model = network()
    x, y = labeled(100, 1)
    model(x)
    memory = EWC(model, strength=1.0, **options)
    memory.consolidate([(x, y)], task="A")
    return model, memory


def test_a_task_is_not_forgotten_through_batch_norm():
    model = network()
    memory = EWC(model, strength=1e9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    memory.attach(optimizer)
    x, y = labeled(1000, 1)
    train(model, optimizer, x, y)
    memory.consolidate([(x, y)], task="A")
    x_test, y_test = labeled(1000, 2)
    learned = accuracy(model, x_test, y_test)
    assert learned > 0.85
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the pull undoes", EWCWarning)
        warnings.filterwarnings("error", "the buffers", EWCWarning)
        train(model, optimizer, 3 * x + 2, y)
    assert accuracy(model, x_test, y_test) >= learned - 0.005


def test_free_statistics_follow_the_training_and_that_is_told():
    model, memory = remembered(statistics="free")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    before = statistics(model)
    x, y = labeled(100, 1)
    with pytest.warns(EWCWarning, match=r"'1.running_mean', '1.running_var' moved since") as told:
        train(model, optimizer, 3 * x + 2, y)
    assert not unchanged(model, before)
    assert len([one for one in told if "the buffers" in str(one.message)]) == 1
    assert "EWC(model, statistics='hold')" in str(told[0].message)


def test_free_statistics_that_moved_are_told_with_a_penalty_and_at_the_next_consolidation():
    x, y = labeled(100, 1)
    model, memory = remembered(statistics="free")
    model(3 * x)
    with pytest.warns(EWCWarning, match="the buffers"):
        memory.penalty().backward()
    model, memory = remembered(statistics="free")
    model(3 * x)
    with pytest.warns(EWCWarning, match="the buffers"):
        memory.consolidate([(x, y)], task="B")


def test_statistics_follow_the_first_task():
    model = network()
    memory = EWC(model, strength=1.0)
    before = statistics(model)
    model(labeled(10, 1)[0])
    assert not unchanged(model, before)
    assert memory.tasks == ()


def test_held_norms_use_their_statistics_and_keep_their_mode():
    model, _ = remembered()
    x = 3 * labeled(20, 3)[0] + 2
    model.eval()
    expected = model(x)
    model.train()
    before = statistics(model)
    torch.testing.assert_close(model(x), expected)
    assert unchanged(model, before)
    assert all(module.training for module in model.modules())


def test_two_memories_may_hold_the_same_norm():
    model, first = remembered(keep_tasks=True)
    second = EWC(model, strength=1.0)
    second.anchor(1.0)
    before = statistics(model)
    model(labeled(20, 3)[0])
    assert model[1].training
    first.forget("A")
    model(labeled(20, 3)[0])
    assert unchanged(model, before)  # the other one still holds it
    assert model[1].training


def test_a_failing_forward_leaves_the_mode_as_it_was():
    model, _ = remembered()
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        model[1](torch.zeros(32))
    assert model[1].training


@pytest.mark.parametrize(
    ("parameters", "held"), [(None, True), ("!1.*", False), ("3.*", False), ("1.*", True)]
)
def test_only_norms_of_protected_layers_are_held_and_told(parameters, held):
    model, memory = remembered(parameters=parameters)
    before = statistics(model)
    model(3 * labeled(20, 3)[0])
    assert unchanged(model, before) == held
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        memory.penalty().backward()


@pytest.mark.parametrize("frozen", ["1", "", "after"], ids=["norm", "body", "afterwards"])
def test_norms_whose_weights_are_frozen_are_held_and_told_too(frozen):
    def freeze(model):
        for layer in model[:2] if frozen == "" else [model[1]]:
            layer.requires_grad_(False)

    def prepared(**options):
        model = network()
        if frozen != "after":
            freeze(model)
        memory = EWC(model, strength=1.0, **options)
        memory.consolidate([labeled(20, 1)])
        freeze(model)
        return model, memory

    model, memory = prepared()
    before = statistics(model)
    model(3 * labeled(20, 3)[0])
    assert unchanged(model, before)
    model, memory = prepared(statistics="free")
    model(3 * labeled(20, 3)[0])
    assert "No penalty holds buffers" in told(lambda: memory.penalty().backward())[0]


def test_a_norm_without_weights_belongs_to_the_layer_around_it():
    body = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8, affine=False))
    other = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False))
    model = nn.Sequential(body, other)
    memory = EWC(model, strength=1.0, parameters="0.*")
    memory.anchor(1.0)
    before = statistics(model)
    model(torch.randn(20, 10))
    after = statistics(model)
    assert all(map(torch.equal, before[:3], after[:3]))
    assert not torch.equal(before[3], after[3])


def test_statistics_are_free_again_when_the_last_task_is_forgotten():
    model, memory = remembered(keep_tasks=True)
    memory.forget("A")
    before = statistics(model)
    model(labeled(20, 3)[0])
    assert not unchanged(model, before)


def held(model: nn.Module) -> bool:
    gc.collect()
    before = statistics(model)
    model(3 * labeled(20, 3)[0])
    return unchanged(model, before)


def test_statistics_are_free_again_when_the_memory_is_gone():
    model, memory = remembered()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memory.attach(optimizer)
    del memory
    assert held(model)  # the optimizer that it is attached to keeps it
    del optimizer
    assert not held(model)


def test_statistics_of_copies_are_free_when_their_own_memory_is_gone():
    model, memory = remembered()
    twin, twin_memory = copy.deepcopy((model, memory))
    pickled, pickled_memory = pickle.loads(pickle.dumps((model, memory)))
    del memory
    assert not held(model)
    assert held(twin)
    assert held(pickled)
    del twin_memory, pickled_memory
    assert not held(twin)
    assert not held(pickled)


def test_a_loaded_memory_holds_statistics_and_a_copy_holds_its_own(tmp_path):
    model, memory = remembered()
    memory.save(tmp_path / "memory.safetensors")
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    loaded = EWC.load(tmp_path / "memory.safetensors", fresh)
    assert loaded.tasks == ("A",)
    twin, twin_memory = copy.deepcopy((model, memory))
    for one in (fresh, twin):
        before = statistics(one)
        one(labeled(20, 3)[0])
        assert unchanged(one, before)
    twin_memory.load_state_dict(EWC(twin, strength=1.0).state_dict())  # no task
    before = statistics(twin)
    twin(labeled(20, 3)[0])
    assert not unchanged(twin, before)
    assert unchanged(model, before)


def test_a_compiled_model_holds_them():
    model, _ = remembered()
    x = 3 * labeled(20, 3)[0] + 2
    expected, before = model(x), statistics(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert unchanged(model, before)


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="expected statistics='hold' or 'free', got 'frozen'"):
        EWC(network(), statistics="frozen")
