"""Every way to fine-tune does what its name says, on a model and texts of a few tokens."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks import tuning_methods
from benchmarks.tuning_methods import (
    METHODS,
    POINTS_ALONG,
    VALUES,
    FisherOptions,
    Start,
    counted,
    fisher_of,
    losses,
    tune,
)
from ewc.warnings import EWCWarning
from examples.finetune_lm import QUICK, Text, untrained

SETTINGS = replace(QUICK, vocabulary=20, width=8, block=8, batch=4, tuning_steps=6, tuning_rate=0.1)


def text(low: int, high: int) -> Text:
    generator = torch.Generator().manual_seed(low)
    parts = [torch.randint(low, high, (16, 8), generator=generator) for _ in range(3)]
    return Text(*parts)


@pytest.fixture
def start() -> Iterator[Start]:
    """The old text has the first ten tokens, the new one the others."""
    with torch.random.fork_rng(devices=[]):
        model, old, new = untrained(SETTINGS), text(0, 10), text(10, 20)
        options = FisherOptions(samples=16)
        fisher = fisher_of(model, old.train, options, seed=0)
        yield Start(model, old, new, SETTINGS, options, fisher)


def test_every_method_has_values() -> None:
    assert set(VALUES) | {"plain"} == set(METHODS)


@pytest.mark.parametrize("method", VALUES)
def test_a_method_learns_and_leaves_the_start_alone(start: Start, method: str) -> None:
    before = losses(start.model, start)
    (after,) = tune(start, method, VALUES[method][0])
    assert after["new"] < before["new"]
    assert losses(start.model, start) == before


def test_plain_training_is_measured_along_the_way(start: Start) -> None:
    points = tune(start, "plain", 0.0)
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))
    assert 1 < len(steps) <= POINTS_ALONG
    assert (steps[0], steps[-1]) == (1, SETTINGS.tuning_steps)
    assert points[-1]["new_test"] < points[0]["new_test"]


@pytest.mark.parametrize("method", ["ewc", "l2"])
def test_an_anchor_that_is_strong_enough_holds_everything(start: Start, method: str) -> None:
    before = losses(start.model, start)
    with pytest.warns(EWCWarning, match="stand still"):
        (held,) = tune(start, method, 1e12)
    (loose,) = tune(start, method, 1e-12)
    plain = tune(start, "plain", 0.0)[-1]
    for part, loss in before.items():
        assert held[part] == pytest.approx(loss, abs=0.01)
        assert loose[part] == pytest.approx(plain[part], abs=1e-4)
        assert abs(plain[part] - loss) > 0.1


def test_replay_sees_old_text_and_as_much_new_text(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    monkeypatch.setattr(
        tuning_methods,
        "train",
        lambda model, blocks, settings, **options: seen.update(options, blocks=blocks),
    )
    tune(start, "replay", 0.2)
    assert len(seen["blocks"]) == 16 + 4
    assert torch.equal(seen["blocks"][:16], start.new.train)
    assert int(seen["blocks"][16:].max()) < 10
    assert seen["steps"] == round(6 / 0.8)


def test_one_token_per_sequence_is_labeled() -> None:
    rows = text(0, 10).train
    (batch,) = counted(rows, one=True, seed=0)
    labeled = batch["labels"] != -100
    assert torch.equal(labeled.sum(1), torch.ones(16, dtype=torch.long))
    assert not labeled[:, 0].any()
    assert torch.equal(batch["labels"][labeled], rows[labeled])


def test_the_fisher_of_single_tokens(start: Start) -> None:
    """The mean over sequences of the squared gradient of one token's log-probability."""
    options = FisherOptions(kind="empirical", samples=16, tokens="one")
    fisher = fisher_of(start.model, start.old.train, options, seed=0)
    name, bias = next((n, p) for n, p in start.model.named_parameters() if n.endswith("ln_f.bias"))
    (batch,) = counted(start.old.train, one=True, seed=0)
    slow = torch.zeros_like(bias)
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        loss = start.model(input_ids=ids[None], labels=labels[None]).loss
        slow += torch.autograd.grad(loss, bias)[0] ** 2 / 16
    torch.testing.assert_close(fisher[name], slow)


def test_options_reach_the_fisher(start: Start) -> None:
    fisher = fisher_of(start.model, start.old.train, FisherOptions(parameters="!*.wte.*"), 0)
    assert set(start.fisher) - set(fisher) == {"transformer.wte.weight"}
    summed = fisher_of(start.model, start.old.train, FisherOptions(positions="sum"), 0)
    per_token = start.fisher["transformer.wte.weight"]
    # of eight tokens, seven are predicted
    torch.testing.assert_close(summed["transformer.wte.weight"], 7 * per_token)
    with pytest.raises(ValueError, match="expected tokens='all' or 'one', got 'some'"):
        fisher_of(start.model, start.old.train, FisherOptions(tokens="some"), 0)


def test_only_changed_options_are_named() -> None:
    assert FisherOptions().label() == ""
    assert FisherOptions(kind="empirical", samples=64).label() == "kind=empirical samples=64"
