"""The models that are measured have the shapes and the structure that their names promise."""

import pytest
import torch

from benchmarks.models import CASES, Case, Transformer, total_cross_entropy, transformer_batch


def test_the_transformer_is_tied_and_causal() -> None:
    model = Transformer()
    assert model.head.weight is model.tokens.weight
    tokens, _ = transformer_batch(1)
    changed = tokens.clone()
    changed[0, 64] = (changed[0, 64] + 1) % 50257
    with torch.no_grad():
        same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(-1)[0]
    assert same[:64].all()
    assert not same[64]


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: f"{case.name} {case.batch_size}")
def test_a_batch_fits_its_model(case: Case) -> None:
    inputs, targets = case.batch(1)
    with torch.no_grad():
        outputs = case.model()(inputs)
    assert outputs.shape[:-1] == targets.shape


def test_the_loss_of_a_sequence_is_the_sum_over_its_positions() -> None:
    outputs, targets = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
    expected = 2 * 3 * torch.log(torch.tensor(5.0))
    torch.testing.assert_close(total_cross_entropy(outputs, targets), expected)
