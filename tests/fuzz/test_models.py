"""A minute of random models, and that a wrong Fisher would be found and its program made small."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ewc
from ewc.fisher.batches import FisherBatch
from ewc.fisher.model import ModelRun
from ewc.fisher.per_sample import checks
from ewc.fisher.per_sample.watch import Watch
from fuzz import models
from fuzz.seeds import few_now

SEEDS = 240
PARTS = 8


@pytest.mark.parametrize("part", few_now(PARTS))
def test_random_models_equal_the_loop(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        models.run(seed)


def test_a_wrong_fisher_is_found_and_its_program_made_small() -> None:
    def wrong(model: models.Model, batches: list[Any], **options: Any) -> dict[str, Tensor]:
        fisher = ewc.fisher_diagonal(model, batches, **options)
        norms = any(isinstance(part, nn.LayerNorm) for part in model.modules())
        many = len(batches) > 1
        return {name: (1 + 1e-6 * (norms and many)) * f for name, f in fisher.items()}

    caught = None
    for seed in range(200):
        try:
            models.run(seed, wrong)
        except models.Mismatch as mismatch:
            caught = str(mismatch)
            break
    assert caught is not None
    assert "off by 1.0e-06" in caught
    steps = [line for line in caught.splitlines() if line.startswith("  ")]
    assert len(steps) == 1  # the one with the norm


def without_comparing_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "samples_to_compare", lambda together, alone, size: [])


def without_copies_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unprotected(run: ModelRun, batch: FisherBatch) -> tuple[Tensor, Watch]:
        with Watch() as watch:
            return run._call(batch), watch

    monkeypatch.setattr(ModelRun, "_watched", unprotected)


@pytest.mark.parametrize(
    ("breaking", "operations"),
    [
        (without_comparing_samples, {*models.MIXING, "written"}),
        (without_copies_of_inputs, {"written"}),
    ],
)
def test_samples_that_mix_and_inputs_that_change_are_among_the_programs(
    breaking: Callable[[pytest.MonkeyPatch], None],
    operations: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaking(monkeypatch)
    caught = []
    for seed in range(SEEDS):
        try:
            models.run(seed)
        except models.Mismatch as mismatch:
            caught.append(str(mismatch))
    assert caught
    for message in caught:
        steps = [line for line in message.splitlines() if line.startswith("  ")]
        assert operations & {line.strip().partition("(")[0] for line in steps}


def test_a_crash_is_a_mismatch_too() -> None:
    def crashes(*args: Any, **options: Any) -> dict[str, Tensor]:
        raise RuntimeError("shape '[3, 3]' is invalid")

    with pytest.raises(models.Mismatch, match="RuntimeError: shape"):
        models.run(0, crashes)


def test_programs_of_the_same_seed_are_the_same() -> None:
    assert models.make_program(3) == models.make_program(3)
    first, second = models.data(models.make_program(3)), models.data(models.make_program(3))
    assert all(torch.equal(a[0][0], b[0][0]) for a, b in zip(first, second, strict=True))
