"""Text that a model says itself: how likely, how it ends, and its Fisher."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.trainers import tiny_gpt2
from torch import nn
from transformers import BertConfig, BertModel, GPT2LMHeadModel

import ewc
from ewc.integrations.transformers import own_text

WITHOUT_ENDS = SimpleNamespace(bos_token_id=3, eos_token_id=None)


def small_gpt2() -> GPT2LMHeadModel:
    """A model of four tokens, which are not equally likely."""
    config = tiny_gpt2().config
    config.vocab_size, config.pad_token_id = 4, 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = GPT2LMHeadModel(config)
        nn.init.normal_(model.lm_head.weight, std=0.2)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts(batches: list[dict[str, torch.Tensor]]) -> list[tuple[int, ...]]:
    """The tokens of each sequence that have labels."""
    return [
        tuple(row[labels >= 0].tolist())
        for batch in batches
        for row, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


def probability(model: nn.Module, text: tuple[int, ...], temperature: float) -> float:
    """That of all tokens after the first, one forward pass for the whole text, in float64."""
    model = model.double().eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([text])).logits[0] / temperature
    steps = logits.log_softmax(-1)[range(len(text) - 1), text[1:]]
    return float(steps.sum().exp())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("end", [None, 1])
def test_texts_are_as_frequent_as_the_model_says(temperature: float, end: int | None) -> None:
    model, count = small_gpt2(), 4000
    tokenizer = SimpleNamespace(bos_token_id=3, eos_token_id=end)
    options: dict[str, Any] = {"temperature": temperature, "generator": seeded()}
    batches = own_text(model, tokenizer, sequences=count, length=4, batch_size=500, **options)
    found = Counter(texts(batches))
    expected = {text: count * probability(model, text, temperature) for text in found}
    assert sum(expected.values()) > 0.98 * count
    for text, number in expected.items():
        assert abs(found[text] - number) < 5 * (number + 1) ** 0.5, text
    assert all(text[0] == 3 and (len(text) == 4 or text[-1] == end) for text in found)
    assert any(len(text) < 4 for text in found) == (end is not None)
    assert not any(end in text[1:-1] for text in found)


class WithoutCache(nn.Module):
    """A model whose outputs have no past, as those of other architectures."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.inner, self.config, self.can_generate = model, model.config, model.can_generate

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        return SimpleNamespace(logits=self.inner(input_ids=input_ids).logits)


def test_a_model_without_a_cache_says_the_same() -> None:
    model = small_gpt2()
    found, expected = (
        texts(own_text(each, sequences=30, length=9, generator=seeded()))
        for each in (WithoutCache(model), model)
    )
    assert found == expected


def test_the_generator_alone_decides_and_the_model_stays_as_it_was() -> None:
    model = tiny_gpt2(dropout=0.5).train()
    state = torch.get_rng_state()
    first, again, other = (
        texts(own_text(model, WITHOUT_ENDS, sequences=5, length=8, generator=seeded(seed)))
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.transformer.drop.training


def test_without_a_start_any_token_begins_and_the_last_batch_is_smaller() -> None:
    nothing = SimpleNamespace(bos_token_id=None, eos_token_id=None)
    batches = own_text(tiny_gpt2(), nothing, sequences=70, length=3, generator=seeded())
    assert [len(batch["input_ids"]) for batch in batches] == [16, 16, 16, 16, 6]
    assert len({text[0] for text in texts(batches)}) > 20  # of 32


def test_its_empirical_fisher_is_a_sample_of_that_of_the_model() -> None:
    model = small_gpt2()
    batches = own_text(model, sequences=1000, length=5, generator=seeded(), batch_size=500)
    assert any(bool((batch["labels"] < 0).any()) for batch in batches)  # some end early
    said, expected = (
        ewc.EWC(model).consolidate(batches, kind=kind, positions="sum")
        for kind in ("empirical", "exact")
    )
    for name, other in expected.items():
        assert float((said[name] - other).norm() / other.norm()) < 0.2, name


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(TypeError, match=r"causal language model .* got a BertModel"):
        own_text(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)))
    for length in (1, 17):
        with pytest.raises(ValueError, match=f"at least 2 tokens and at most 16, .* got {length}"):
            own_text(tiny_gpt2(), length=length)
    with pytest.raises(ValueError, match="temperature above 0, got 0"):
        own_text(tiny_gpt2(), length=8, temperature=0)
    foreign = SimpleNamespace(bos_token_id=None, eos_token_id=99)
    with pytest.raises(ValueError, match="99 is outside of its vocabulary of 32"):
        own_text(tiny_gpt2(), foreign, length=8)
