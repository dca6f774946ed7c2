"""The callback in the real `Trainer` of Lightning: a plain loop's weights, checkpoints, the end."""

import runpy
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import SingleDeviceStrategy
from support.trainers import (
    ACCUMULATED,
    BATCH,
    CLIP,
    OLD,
    ROWS,
    STEPS,
    TOKENS,
    adamw,
    batches,
    distance,
    memory_of,
    plain_loop,
    tiny_gpt2,
    two_memories,
    weights,
    with_memory,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import ewc
import ewc.integrations.lightning
from ewc import EWC, EWCWarning
from ewc.integrations.lightning import EWCCallback


class Tuning(LightningModule):
    """The tiny GPT-2; a batch of its training data is a mapping."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.net = tiny_gpt2().train()
        self.fused = fused

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        # Lightning divides by the number of accumulated batches.
        return self.net(**batch, num_items_in_batch=TOKENS).loss * ACCUMULATED

    def configure_optimizers(self) -> Any:
        optimizer, schedule = adamw(self, self.fused)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class TwoOptimizers(LightningModule):
    """A body and a head with an optimizer each, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        loss = self.head(self.body(torch.ones(2, 4))).square().mean()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body, self.head)]


def make_trainer(*callbacks: Callback, **changed: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "accumulate_grad_batches": ACCUMULATED,
        "gradient_clip_val": CLIP,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(callbacks=list(callbacks), **(settings | changed))


@pytest.fixture(autouse=True)
def no_advice() -> Iterator[None]:
    """Lightning's advice on loaders and checkpoints is not what is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_the_weights_are_those_of_a_plain_loop(how: Any, curvature: Any) -> None:
    module = Tuning()
    make_trainer(EWCCallback(memory_of(module.net, curvature), how=how)).fit(module, batches())
    assert distance(module.net, plain_loop(with_memory(how, curvature))) < 1e-5
    assert distance(module.net, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_same_in_bfloat16(curvature: Any) -> None:
    module = Tuning(fused=False)  # else Lightning does not clip in mixed precision
    callback = EWCCallback(memory_of(module.net, curvature))
    make_trainer(callback, precision="bf16-mixed").fit(module, batches())
    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    attach = with_memory(curvature=curvature)
    reference = plain_loop(attach, context=autocast, fused=False)
    assert distance(module.net, reference) < 1e-5


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_an_interrupted_run_ends_where_the_uninterrupted_one_does(
    curvature: Any, tmp_path: Path
) -> None:
    half = DataLoader(ROWS[: len(ROWS) // 2], batch_size=BATCH)  # two epochs of it
    whole = Tuning()
    epochs = {"max_steps": -1, "max_epochs": 2}
    make_trainer(EWCCallback(memory_of(whole.net, curvature)), **epochs).fit(whole, half)

    first = Tuning()
    saving = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    callbacks = [EWCCallback(memory_of(first.net, curvature)), saving]
    once = epochs | {"max_epochs": 1, "enable_checkpointing": True}
    make_trainer(*callbacks, **once).fit(first, half)
    assert distance(first.net, whole.net) > 1e-3

    second = Tuning()
    nn.init.zeros_(second.net.lm_head.weight)
    memory = EWC(second.net, strength=1.0, curvature=curvature)
    trainer = make_trainer(EWCCallback(memory), **epochs)
    trainer.fit(second, half, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert distance(second.net, whole.net) == 0
    assert (memory.tasks, memory.strength) == (("old",), 1000.0)


class Told(Logger):
    """Keeps what it is told of the memory."""

    name, version = "told", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, dict[str, float]] = {}

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        found = {name: value for name, value in metrics.items() if name.startswith("ewc")}
        if found:
            assert step is not None
            self.rows[step] = found


def test_the_log_has_the_strength_and_the_rise() -> None:
    module, told, measured = Tuning(), Told(), {}
    memory = EWC(module.net, curvature="kronecker", budget=0.001)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")

    class Measure(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
            measured[trainer.global_step] = (
                memory.strength,
                memory.estimated_rise(),
                memory.allowed_rise(),
            )

    trainer = make_trainer(EWCCallback(memory), Measure(), logger=told, log_every_n_steps=2)
    trainer.fit(module, batches())
    assert len(told.rows) == STEPS // 2
    for step, row in told.rows.items():
        names = ("ewc_strength", "ewc_estimated_rise", "ewc_allowed_rise")
        assert [row[name] for name in names] == pytest.approx(measured[step + 1], rel=1e-6)
        assert row["ewc_estimated_rise"] > 0


def test_the_memory_in_a_checkpoint_is_tensors_only(tmp_path: Path) -> None:
    module = Tuning()
    memory = memory_of(module.net)
    trainer = make_trainer(EWCCallback(memory), max_steps=1)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    saved = checkpoint["callbacks"]["EWCCallback"]
    assert saved.keys() == memory.state_dict().keys()
    assert all(isinstance(value, Tensor) for value in saved.values())


def named(old: EWC, even: EWC) -> tuple[EWCCallback, EWCCallback]:
    return EWCCallback(old), EWCCallback(even, name="even")


def test_two_memories_are_resumed_each_as_it_was(tmp_path: Path) -> None:
    half = DataLoader(ROWS[: len(ROWS) // 2], batch_size=BATCH)  # two epochs of it
    epochs = {"max_steps": -1, "max_epochs": 2}
    whole = Tuning()
    saving = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    callbacks = [*named(*two_memories(whole.net)), saving]
    make_trainer(*callbacks, **epochs, enable_checkpointing=True).fit(whole, half)

    resumed = Tuning()
    nn.init.zeros_(resumed.net.lm_head.weight)
    old, even = EWC(resumed.net, strength=1.0), EWC(resumed.net, strength=1.0)
    trainer = make_trainer(*named(old, even), **epochs)
    trainer.fit(resumed, half, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert distance(resumed.net, whole.net) == 0
    assert (old.tasks, old.strength) == (("old",), 1000.0)
    assert (even.tasks, even.strength) == (("even",), 7.0)

    without = Tuning()
    make_trainer(EWCCallback(memory_of(without.net)), **epochs).fit(without, half)
    assert distance(without.net, whole.net) > 1e-3  # the second one mattered


def test_the_default_name_is_that_of_older_checkpoints(tmp_path: Path) -> None:
    module = Tuning()
    trainer = make_trainer(*named(*two_memories(module.net)), max_steps=1)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert checkpoint["callbacks"].keys() == {"EWCCallback", "EWCCallback{'name': 'even'}"}


class WithCallbacks(Tuning):
    """Brings its own callbacks, which Lightning does not compare with each other."""

    callbacks: tuple[Callback, ...] = ()

    def configure_callbacks(self) -> list[Callback]:
        return list(self.callbacks)


@pytest.mark.parametrize("name", ["ewc", "even"])
@pytest.mark.parametrize("of_module", [False, True])
def test_the_same_name_twice_is_refused(name: str, of_module: bool) -> None:
    module = WithCallbacks()
    both = tuple(EWCCallback(memory, name=name) for memory in two_memories(module.net))
    module.callbacks = both if of_module else ()
    trainer = make_trainer(*(() if of_module else both))
    with pytest.raises(ValueError, match=f"a name of its own for each .* got '{name}' twice"):
        trainer.fit(module, batches())
    assert not trainer.optimizers  # nothing to attach to yet
    assert distance(module.net, tiny_gpt2()) == 0


def without_memory(directory: Path) -> Path:
    """A checkpoint at step 3, saved without the callback."""
    trainer = make_trainer(max_steps=3)
    trainer.fit(Tuning(), batches())
    trainer.save_checkpoint(directory / "3.ckpt")
    return directory / "3.ckpt"


def test_a_checkpoint_without_a_memory_is_an_error(tmp_path: Path) -> None:
    module = Tuning()
    trainer = make_trainer(EWCCallback(EWC(module.net, strength=1.0)))
    with pytest.raises(RuntimeError, match="named 'ewc', and the memory given has no task"):
        trainer.fit(module, batches(), ckpt_path=without_memory(tmp_path))


def test_a_memory_that_was_given_for_it_is_told(tmp_path: Path) -> None:
    module = Tuning()
    trainer = make_trainer(EWCCallback(memory_of(module.net)))
    with pytest.warns(EWCWarning, match=r"as it was given, with the tasks \['old'\]"):
        trainer.fit(module, batches(), ckpt_path=without_memory(tmp_path))


def test_it_consolidates_on_the_trainers_batches() -> None:
    module = Tuning()
    memory = memory_of(module.net)
    callback = EWCCallback(memory, consolidate={"task": "new", "kind": "empirical"})
    make_trainer(callback).fit(module, batches())
    by_hand = EWC(module.net, strength=1.0)
    by_hand.load_state_dict(memory_of(tiny_gpt2()).state_dict())
    by_hand.consolidate(list(batches()), task="new", kind="empirical")
    assert memory.tasks == ("old", "new")
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(memory.state_dict()[name], value)


def test_every_optimizer_with_protected_parameters_is_pulled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached: list[Any] = []
    attach = EWC.attach

    def noted(memory: EWC, optimizer: Any, **options: Any) -> Any:
        attached.append(optimizer)
        return attach(memory, optimizer, **options)

    monkeypatch.setattr(EWC, "attach", noted)
    module = TwoOptimizers()
    whole = EWC(module, strength=1.0)
    body = EWC(module, strength=1.0, parameters="body.*")
    whole.anchor(1.0)
    body.anchor(1.0)
    both = (EWCCallback(whole), EWCCallback(body))
    for callback, count in zip(both, (2, 1), strict=True):
        attached.clear()
        trainer = make_trainer(
            callback, accumulate_grad_batches=1, gradient_clip_val=None, max_steps=2
        )
        trainer.fit(module, batches())
        assert len(attached) == count
        assert attached[0].param_groups[0]["params"][0] is module.body.weight


def test_the_memory_is_detached_after_training() -> None:
    module = Tuning()
    trainer = make_trainer(EWCCallback(memory_of(module.net)), max_steps=1)
    trainer.fit(module, batches())
    assert not trainer.optimizers[0]._optimizer_step_post_hooks


class Normed(LightningModule):
    """A classifier with batch norm and dropout, whose batches its hooks change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 10, *batch[1:]]

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WithTask(Normed):
    """A module that is called with an input and a task."""

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.net(x) + task

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0], 0), batch[1])


def points(*more: Tensor, shuffle: bool = True) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 4, generator=generator), torch.arange(24) % 3
    return DataLoader(TensorDataset(x, y, *more), batch_size=8, shuffle=shuffle)


def fit(module: LightningModule, loader: Any, *callbacks: Callback) -> Trainer:
    settings = {"accumulate_grad_batches": 1, "max_steps": 5, "max_epochs": 2}
    torch.manual_seed(1)
    trainer = make_trainer(*callbacks, **settings)
    trainer.fit(module, loader)
    return trainer


def test_the_trial_of_a_batch_changes_nothing_about_the_training() -> None:
    plain, tried = Normed(), Normed()
    fit(plain, points())
    fit(tried, points(), EWCCallback(EWC(tried), consolidate=True))
    for name, value in plain.state_dict().items():
        assert torch.equal(tried.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("module", "loader", "expected"),
    [
        (Normed(), points(torch.zeros(24)), "batch 0 has 3 items"),
        (WithTask(), points(), "missing 1 required positional argument: 'task'"),
    ],
    ids=["three items", "forward(x, task)"],
)
def test_batches_that_the_model_cannot_be_called_with_are_refused_before_the_first_step(
    module: LightningModule, loader: DataLoader, expected: str
) -> None:
    before = weights(module)
    memory = EWC(module)
    with pytest.raises(ValueError, match=f"would fail at the end .* {expected}"):
        fit(module, loader, EWCCallback(memory, consolidate=True))
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())
    fit(module, loader)  # training itself works


def test_several_loaders_are_refused_before_the_first_step() -> None:
    module = Normed()
    with pytest.raises(ValueError, match="batches of one loader, and this training has several"):
        fit(module, [points(), points()], EWCCallback(EWC(module), consolidate=True))


def test_the_fisher_is_that_of_batches_as_the_training_step_gets_them() -> None:
    module = Normed()
    callback = EWCCallback(EWC(module, strength=1.0), consolidate={"task": "A"})
    fit(module, points(shuffle=False), callback)
    by_hand = EWC(module, strength=1.0)
    by_hand.consolidate([(10 * x, y) for x, y in points(shuffle=False)], task="A")
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(callback.memory.state_dict()[name], value)


class BreaksLater:
    """A collator whose batches have three items after some calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, rows: list[Any]) -> Any:
        self.calls -= 1
        x, y = default_collate(rows)
        return (x, y) if self.calls >= 0 else (x, y, y)


def test_what_fails_at_the_end_keeps_the_weights_and_says_how_to_go_on() -> None:
    module, plain = Normed(), Normed()
    fit(plain, points(shuffle=False))
    memory = EWC(module)
    loader = DataLoader(points().dataset, batch_size=8, collate_fn=BreaksLater(6))
    callback = EWCCallback(memory, consolidate={"task": "A"})
    call = r"memory\.consolidate\(batches, task='A', kind='exact'\)"
    with pytest.warns(EWCWarning, match=f"training is done .* has 3 items.* {call}"):
        fit(module, loader, callback)
    assert memory.tasks == ()
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True)
    )


class DeepSpeedStrategy(SingleDeviceStrategy):
    """Stands in for Lightning's, which cannot be made without DeepSpeed."""


def test_deepspeed_is_refused_before_anything_is_touched() -> None:
    module = Normed()
    trainer = make_trainer(EWCCallback(EWC(module)), strategy=DeepSpeedStrategy("cpu"))
    with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\) .* DistributedDataParallel"):
        trainer.fit(module, points())
    assert not trainer.optimizers


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ImportError, match=r"pip install 'ewc\[lightning\]'"):
        runpy.run_path(str(ewc.integrations.lightning.__file__))


class Counting(Normed):
    """Counts its steps."""

    steps = 0

    def on_before_zero_grad(self, optimizer: object) -> None:
        self.steps += 1


def test_new_classes_at_a_shared_head_are_told_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, told_at = Counting(), []
    memory = ewc.EWC(module, strength=1.0)

    def show(message: Warning, *rest: Any, **more: Any) -> None:
        if "class-incremental" in str(message):
            told_at.append(module.steps)

    for task, labels in (("A", torch.arange(96) % 2), ("B", torch.full((96,), 2))):
        module.steps = 0
        loader = DataLoader(TensorDataset(torch.randn(96, 4), labels), batch_size=32)
        with warnings.catch_warnings():
            warnings.simplefilter("always", EWCWarning)
            monkeypatch.setattr(warnings, "showwarning", show)
            fit(module, loader, EWCCallback(memory, consolidate={"task": task}))
    assert told_at == [0]  # once, before the first step of the second task
