"""Every way a loader may spell a batch, up to real Transformers models; batches are joined."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import datasets
import numpy as np
import pytest
import torch
from support.fisher import Custom, assert_equal_fishers, batch_of_one_fisher, the_target
from support.trainers import NEW, memory_of, tiny_gpt2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import ewc
from ewc.fisher.batches import BATCH_SIZE, as_batches, refuse_packing

transformers = pytest.importorskip("transformers")


def test_spellings_of_the_same_batch() -> None:
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    expected = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    named = Custom(lambda m, *args: None, linear=model)
    named.forward = lambda pixels: {"logits": model(pixels)}
    for batches in (
        [[x, y]],
        [((x,), y)],
        DataLoader(TensorDataset(x, y), batch_size=4),
        iter([(x[:1], y[:1]), (x[1:], y[1:])]),
    ):
        assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)
    for batches in ([{"pixels": x, "labels": y}], [({"pixels": x}, y)]):
        actual = ewc.fisher_diagonal(named, batches, kind="empirical")
        assert_equal_fishers({k.removeprefix("linear."): f for k, f in actual.items()}, expected)
    exact = ewc.fisher_diagonal(model, [x])
    assert_equal_fishers(ewc.fisher_diagonal(model, DataLoader(TensorDataset(x))), exact)


def test_labels_are_classes_in_every_integer_type() -> None:
    """To PyTorch the uint8 156 equals -100, the label that is ignored."""
    model = nn.Linear(4, 200).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([156, 156, 156, 1, 2, 3])
    for kind in ("exact", "empirical"):
        expected = ewc.fisher_diagonal(model, [(x, y)], kind=kind)
        for dtype in (torch.uint8, torch.int16, torch.int32):
            actual = ewc.fisher_diagonal(model, [(x, y.to(dtype))], kind=kind)
            assert_equal_fishers(actual, expected)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_named_tuples_stay_named() -> None:
    model = Custom(lambda m, pair: m.linear(pair.left * pair.right), linear=nn.Linear(4, 3))
    left, right = torch.randn(2, 6, 4)
    actual = ewc.fisher_diagonal(model, [((Pair(left, right),), torch.zeros(6, dtype=torch.long))])
    expected = ewc.fisher_diagonal(model.linear, [left * right])
    assert_equal_fishers({k.removeprefix("linear."): f for k, f in actual.items()}, expected)


def test_targets_in_a_named_tuple_stay_named() -> None:
    model, x = nn.Linear(4, 3).double(), torch.randn(6, 4).double()
    left, right = torch.randn(2, 6, 3).double()

    def of_pair(output: Tensor, pair: Pair) -> Tensor:
        return -(output - pair.left - pair.right).square().sum(-1) / 2

    options: dict[str, Any] = {"kind": "empirical"}
    actual = ewc.fisher_diagonal(model, [(x, Pair(left, right))], likelihood=of_pair, **options)
    expected = ewc.fisher_diagonal(model, [(x, left + right)], likelihood="gaussian", **options)
    assert_equal_fishers(actual, expected)


def test_without_labels_the_mask_of_the_decoder_says_which_positions_count() -> None:
    """Both masks have the same shape if both sides are padded to the same length."""
    body = nn.Embedding(7, 5).double()

    class Decoder(nn.Module):
        config = SimpleNamespace(is_encoder_decoder=True)

        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, decoder_input_ids: Tensor, **others: Tensor) -> dict[str, Tensor]:
            return {"logits": self.body(decoder_input_ids)}

    model = Decoder()
    ids, decoded = torch.randint(7, (2, 4, 6))
    encoder, decoder = torch.ones(4, 6), torch.ones(4, 6)
    encoder[:, 3:], decoder[:2, 1:] = 0, 0
    batch = {
        **{"input_ids": ids, "attention_mask": encoder},
        **{"decoder_input_ids": decoded, "decoder_attention_mask": decoder},
    }
    labels = torch.where(decoder > 0, 0, -100)  # what they are does not matter to "exact"
    expected = ewc.fisher_diagonal(body, [(decoded, labels)])
    actual = ewc.fisher_diagonal(model, [batch])
    assert_equal_fishers({k.removeprefix("body."): f for k, f in actual.items()}, expected)


SIZES = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 16, "max_position_embeddings": 8}


def bert(kind: type[nn.Module], **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(transformers.BertConfig(**SIZES, **options)).double()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).double()


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config).double()


class Logits(nn.Module):
    """The logits alone, from ids and mask: what the reference differentiates."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits


class Tagger(transformers.BertPreTrainedModel):
    """A class of one's own, whose name tells Transformers nothing about its loss."""

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden))


@pytest.mark.parametrize(
    ("make", "shifted"),
    [
        (gpt2, True),
        (llama, True),
        (lambda: bert(transformers.BertForMaskedLM), False),
        (lambda: bert(Tagger), False),
    ],
    ids=["GPT-2", "Llama", "masked BERT", "tagger"],
)
def test_a_causal_language_model_predicts_the_next_label_and_others_that_in_place(
    make: Callable[[], nn.Module], shifted: bool
) -> None:
    model = make().eval()
    ids = torch.randint(1, 13, (3, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    actual = ewc.fisher_diagonal(model, [batch], kind="empirical")
    target = labels
    if shifted:
        target = torch.cat([labels[:, 1:], torch.full((3, 1), -100)], 1)
    expected = batch_of_one_fisher(Logits(model), (ids, mask), target, the_target)
    assert_equal_fishers(actual, {k.removeprefix("model."): f for k, f in expected.items()})


def test_without_labels_only_attended_positions_count() -> None:
    model = gpt2().eval()
    ids, mask = torch.randint(1, 13, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[:, 4:] = 0
    padded = ewc.fisher_diagonal(
        model, [{"input_ids": ids, "attention_mask": mask}], kind="exact", parameters="*.ln_f.*"
    )
    cut = ewc.fisher_diagonal(model, [{"input_ids": ids[:, :4]}], parameters="*.ln_f.*")
    assert_equal_fishers(padded, cut)


def test_a_sequence_classifier_ignores_the_attention_mask() -> None:
    model = bert(transformers.BertForSequenceClassification, num_labels=3).eval()
    ids, mask = torch.randint(1, 13, (3, 6)), torch.ones(3, 6, dtype=torch.long)
    mask[0, 3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 2])}
    expected = batch_of_one_fisher(Logits(model), (ids, mask), batch["labels"], the_target)
    actual = ewc.fisher_diagonal(model, [batch], kind="empirical")
    assert_equal_fishers(actual, {k.removeprefix("model."): f for k, f in expected.items()})


def test_lists_with_one_item_per_sample_are_cut_into_samples() -> None:
    """Lengths as a list, names as a list or a tuple (as the default collation gives them)."""
    lengths, names = [3, 1, 2, 4], ("a", "bb", "a", "bb")

    def forward(m: Custom, x: Tensor, lengths: list[int], names: Sequence[str]) -> Tensor:
        assert len(x) == len(lengths) == len(names)
        kept = torch.stack([row[:n].sum(0) for row, n in zip(m.a(x), lengths, strict=True)])
        return m.b(kept * torch.tensor([[float(len(name))] for name in names]))

    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)).double()
    x, y = torch.randn(4, 4, 4, dtype=torch.float64), torch.randint(3, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = ewc.fisher_diagonal(model, [((x, lengths, names), y)], kind="empirical")
    alone = [((x[n : n + 1], lengths[n : n + 1], names[n : n + 1]), y[n : n + 1]) for n in range(4)]
    assert_equal_fishers(whole, ewc.fisher_diagonal(model, alone, kind="empirical"))


def test_a_size_is_not_cut_into_samples() -> None:
    model = Custom(
        lambda m, x, size: m.a(x.unflatten(1, size)).flatten(1), a=nn.Linear(2, 2)
    ).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    whole = ewc.fisher_diagonal(model, [((x, (2, 2)),)])
    alone = [((row[None], (2, 2)),) for row in x]
    assert_equal_fishers(whole, ewc.fisher_diagonal(model, alone))


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(()), lambda: np.zeros(()), lambda: SimpleNamespace(value=0.0)]
)
def test_what_a_loader_fills_anew_does_not_wait(make: Callable[[], Any]) -> None:
    """Small batches are joined; one with a value that the loader goes on changing is not."""

    def forward(m: Custom, x: Tensor, scale: Any) -> Tensor:
        return m.a(x) * float(getattr(scale, "value", scale))

    model = Custom(forward, a=nn.Linear(4, 3)).double()
    x = torch.randn(4, 3, 4, dtype=torch.float64)

    def reusing() -> Iterator[Any]:
        scale = make()
        for n, one in enumerate(x):
            if isinstance(scale, SimpleNamespace):
                scale.value = n + 1.0
            else:
                scale[...] = n + 1.0
            yield ((one, scale),)

    apart = [ewc.fisher_diagonal(model, [((one, n + 1.0),)]) for n, one in enumerate(x)]
    mean = {name: sum(f[name] for f in apart) / 4 for name in apart[0]}
    assert_equal_fishers(ewc.fisher_diagonal(model, reusing()), mean)


def test_equal_tuples_of_texts_in_batches_that_could_be_joined() -> None:
    """The default collation makes such tuples of a column of texts."""

    def forward(m: Custom, x: Tensor, languages: Sequence[str]) -> Tensor:
        assert len(x) == len(languages)
        scale = torch.tensor([1.0 if one == "de" else 3.0 for one in languages])
        return m.a(x) * scale.unsqueeze(1)

    model = Custom(forward, a=nn.Linear(4, 3)).double()
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    batches = [((one, ("de", "fr")),) for one in x]
    apart = [ewc.fisher_diagonal(model, [batch]) for batch in batches]
    mean = {name: sum(f[name] for f in apart) / 5 for name in apart[0]}
    assert_equal_fishers(ewc.fisher_diagonal(model, batches), mean)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("bias", [True, False])
def test_sparse_inputs(layout: torch.layout, bias: bool) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        return torch.addmm(m.b, x, m.a) if bias else torch.sparse.mm(x, m.a)

    model = Custom(forward, a=nn.Parameter(torch.randn(4, 3)), b=nn.Parameter(torch.randn(3)))
    x = torch.randn(6, 4) * (torch.rand(6, 4) > 0.5)
    expected = ewc.fisher_diagonal(
        Custom(lambda m, x: x @ m.a + bias * m.b, a=model.a, b=model.b), [x]
    )
    actual = ewc.fisher_diagonal(model, [x.to_sparse(layout=layout)])
    torch.testing.assert_close(actual["a"], expected["a"])


def test_sparse_inputs_of_a_linear_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = (torch.randn(6, 4) * (torch.rand(6, 4) > 0.5)).double()
    assert_equal_fishers(
        ewc.fisher_diagonal(model, [x.to_sparse()]), ewc.fisher_diagonal(model, [x])
    )


ROWS = datasets.Dataset.from_dict({"input_ids": [row[: 4 + n % 3].tolist() for n, row in
                                                 enumerate(NEW)]})  # fmt: skip


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": labels.ge(0).long(),
            "labels": labels}  # fmt: skip


def test_a_dataset_of_hugging_face_with_its_collator() -> None:
    model = tiny_gpt2()
    fisher = ewc.fisher_diagonal(model, ROWS, collate=padded, kind="empirical")
    loader = DataLoader(ROWS, batch_size=5, collate_fn=padded)
    expected = ewc.fisher_diagonal(model, loader, kind="empirical")
    for name, value in expected.items():
        torch.testing.assert_close(fisher[name], value, rtol=1e-4, atol=1e-8)
    assert (
        memory_of(model).consolidate(ROWS, collate=padded, kind="sampled").keys() == fisher.keys()
    )


def test_a_map_style_dataset() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(70, 4), torch.randint(3, (70,))
    fisher = ewc.fisher_diagonal(model, TensorDataset(x, y), collate=default_collate)
    expected = ewc.fisher_diagonal(model, [(x, y)])
    for name, value in expected.items():
        torch.testing.assert_close(fisher[name], value)
    sizes = [len(batch[0]) for batch in as_batches(TensorDataset(x, y), default_collate)]
    assert sizes == [BATCH_SIZE, BATCH_SIZE, 6]


@pytest.mark.parametrize(
    "dataset",
    [ROWS, TensorDataset(torch.zeros(3, 4)), ROWS.batch(8)],
    ids=["hf", "torch", "batched rows"],
)
def test_without_a_collator_it_is_refused(dataset: Any) -> None:
    expected = r"Dataset gives its rows one by one, also after batch\(n\), .* with collate="
    with pytest.raises(TypeError, match=expected):
        ewc.fisher_diagonal(nn.Linear(4, 3), dataset)


def test_a_loader_has_its_own() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="a DataLoader has a collator"):
        ewc.fisher_diagonal(nn.Linear(4, 3), loader, collate=default_collate)


def test_a_collator_has_no_effect_on_a_ready_fisher() -> None:
    memory = ewc.EWC(nn.Linear(4, 3), strength=1.0)
    fisher = {"weight": torch.ones(3, 4), "bias": torch.ones(3)}
    with pytest.raises(ValueError, match="has no effect on a ready Fisher"):
        memory.consolidate(fisher, collate=default_collate)


TOKENS = torch.arange(8).reshape(1, 8)
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    "more", [{"cu_seq_lens_q": torch.tensor([0, 4, 8])}, {"position_ids": POSITIONS}]
)
def test_a_packed_batch_is_refused(more: dict[str, torch.Tensor]) -> None:
    item = {"input_ids": TOKENS, "labels": TOKENS, **more}
    with pytest.raises(ValueError, match=r"batch 0 is packed: .* \(packing=False"):
        ewc.fisher_diagonal(tiny_gpt2(), [item], kind="empirical")


def test_other_positions_are_taken() -> None:
    mask = torch.tensor([[0, 0, 1, 1]])
    refuse_packing({"position_ids": torch.arange(8).expand(2, 8)}, "batch 0")
    refuse_packing(
        {"position_ids": torch.tensor([[1, 1, 0, 1]]), "attention_mask": mask}, "batch 0"
    )
    refuse_packing({"input_ids": TOKENS}, "batch 0")
