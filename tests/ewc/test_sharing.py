"""The file of a memory: what is stored, what is refused, and how large it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import ewc
from ewc import EWC
from ewc.log_codes import RELATIVE_ERROR

BATCHES = [torch.randn(40, 64, generator=torch.Generator().manual_seed(0))]


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 20))


def remembering(model: nn.Module, **options: Any) -> EWC:
    memory = EWC(model, strength=30.0, **options)
    memory.consolidate(BATCHES, task="A")
    return memory


@pytest.mark.parametrize(
    ("precision", "anchors", "bytes_per_parameter"),
    [
        *[("full", True, 8), ("bfloat16", True, 6), ("8 bits", True, 5)],
        *[("full", False, 4), ("bfloat16", False, 2), ("8 bits", False, 1)],
    ],
)
def test_bytes_per_parameter(
    precision: Any, anchors: bool, bytes_per_parameter: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    memory = EWC(model, strength=1.0)
    memory.anchor({name: torch.rand_like(p) for name, p in model.named_parameters()})
    memory.save(tmp_path / "file", precision=precision, anchors=anchors)
    size = (tmp_path / "file").stat().st_size / sum(p.numel() for p in model.parameters())
    assert bytes_per_parameter <= size < bytes_per_parameter + 0.01
    assert EWC.load(tmp_path / "file", model).tasks == ("task 1",)


@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 2**-8), ("8 bits", RELATIVE_ERROR)])
@pytest.mark.parametrize("anchors", [True, False])
def test_a_smaller_file_has_nearly_the_same_precision_and_the_same_anchors(
    precision: Any, error: float, anchors: bool, tmp_path: Path
) -> None:
    model = make_model()
    memory = remembering(model)
    memory.save(tmp_path / "file", precision=precision, anchors=anchors)
    loaded = EWC.load(tmp_path / "file", model).state_dict()
    for key, tensor in memory.state_dict().items():
        if ".precision." in key:
            change = (loaded[key] - tensor).abs() / tensor
            assert 0 < float(change.max()) <= error * (1 + 1e-6)
        else:
            assert torch.equal(loaded[key], tensor)


def test_the_penalty_survives(tmp_path: Path) -> None:
    model = make_model()
    memory = remembering(model, keep_tasks=True)
    memory.anchor(1.0, task="B")
    for precision in ("full", "8 bits"):
        memory.save(tmp_path / "file", precision=precision)  # type: ignore[arg-type]
        loaded = EWC.load(tmp_path / "file", model)
        loaded.forget("B")
        reference = remembering(model, keep_tasks=True)
        with torch.no_grad():
            model[0].weight.add_(0.01)
            exact = precision == "full"
            ratio = float(loaded.penalty() / reference.penalty())
            assert ratio == 1 if exact else abs(ratio - 1) < 0.02
            model[0].weight.copy_(reference.state_dict()["total.anchor.0.weight"])


def test_anchors_that_are_not_the_weights_are_not_left_out(tmp_path: Path) -> None:
    model = make_model()
    memory = remembering(model)
    with torch.no_grad():
        model[2].bias.add_(1e-3)
    with pytest.raises(ValueError, match=r"anchors=False leaves out .* '2\.bias' differs"):
        memory.save(tmp_path / "file", anchors=False)
    assert not list(tmp_path.iterdir())


def test_without_anchors_the_model_must_have_the_weights(tmp_path: Path) -> None:
    remembering(make_model()).save(tmp_path / "file", anchors=False)
    with pytest.raises(ValueError, match=r"for a model with other weights: '0\.\w+' is not"):
        EWC.load(tmp_path / "file", make_model(seed=1))
    assert EWC.load(tmp_path / "file", make_model()).tasks == ("A",)


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    model = make_model()
    card = {"data": "Gauß", "kind": "exact", "samples": 40, "notes": "free text"}
    remembering(model).save(tmp_path / "file", card=card)
    parameters = sum(p.numel() for p in model.parameters())
    assert ewc.read_card(tmp_path / "file") == {
        **{"model": "Sequential", "parameters": parameters, "tasks": ["A"]},
        **{"version": ewc.__version__, **card},
    }


def test_a_card_that_is_no_json_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        remembering(make_model()).save(tmp_path / "file", card={"data": BATCHES})
    assert not list(tmp_path.iterdir())


def test_a_larger_vocabulary(tmp_path: Path) -> None:
    small, large = nn.Embedding(5, 3), nn.Embedding(7, 3)
    with torch.no_grad():
        large.weight[:5] = small.weight
    memory = EWC(small, strength=2.0)
    memory.anchor({"weight": torch.rand(5, 3)})
    for anchors in (True, False):
        memory.save(tmp_path / "file", anchors=anchors)
        with pytest.raises(
            ValueError, match=r"\(5, 3\) in the file and \(7, 3\) in the model: .* "
        ):
            EWC.load(tmp_path / "file", large)
        grown = EWC.load(tmp_path / "file", large, grow=True)
        for model in (small, large):
            with torch.no_grad():
                model.weight += 1.0
        assert grown.penalty().item() == pytest.approx(memory.penalty().item())
        for model in (small, large):
            with torch.no_grad():
                model.weight -= 1.0
        small.weight.data.copy_(memory.state_dict()["total.anchor.weight"])
        large.weight.data[:5] = small.weight.data
    with pytest.raises(ValueError, match=r"\(5, 3\) in the file and \(4, 3\) in the model$"):
        EWC.load(tmp_path / "file", nn.Embedding(4, 3), grow=True)


@pytest.mark.parametrize(
    "rename",
    [
        {"0.weight": "body.weight", "0.bias": "body.bias"},
        lambda name: name.replace("0.", "body."),
    ],
)
def test_other_names(rename: Any, tmp_path: Path) -> None:
    model = make_model()
    memory = remembering(model, parameters="0.*")
    memory.save(tmp_path / "file")
    other = nn.ModuleDict({"body": model[0], "new head": nn.Linear(48, 2)})
    with pytest.raises(ValueError, match=r"protects '0\.\w+', which the model has not.* rename="):
        EWC.load(tmp_path / "file", other)
    loaded = EWC.load(tmp_path / "file", other, rename=rename)
    with torch.no_grad():
        model[0].weight += 0.1
    assert loaded.penalty().item() == memory.penalty().item() > 0


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = make_model()
    remembering(model).save(tmp_path / "file")
    with pytest.raises(
        ValueError, match=r"rename has '3\.bias', which is not in the file; closest"
    ):
        EWC.load(tmp_path / "file", model, rename={"3.bias": "0.bias"})
    with pytest.raises(ValueError, match="two parameters the same name"):
        EWC.load(tmp_path / "file", model, rename=lambda name: "0.bias")


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected precision to be one of 'full', 'bfloat16'"):
        remembering(make_model()).save(tmp_path / "file", precision="int4")  # type: ignore[arg-type]


def change(path: Path, key: str, tensor: torch.Tensor | None, **metadata: str) -> None:
    """Write a file again with one tensor replaced, or left out."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        kept = file.metadata()
    if tensor is None:
        del tensors[key]
    else:
        tensors[key] = tensor
    save_file(tensors, path, kept | metadata)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_numbers_that_no_precision_can_be_are_refused(bad: float, tmp_path: Path) -> None:
    model = make_model()
    remembering(model).save(tmp_path / "file")
    change(tmp_path / "file", "total.precision.2.bias", torch.full((20,), bad))
    with pytest.raises(ValueError, match=r"is damaged: the precision of '2\.bias' has NaN"):
        EWC.load(tmp_path / "file", model)


@pytest.mark.parametrize("key", ["total.anchor.0.bias", "top.total.precision.0.bias"])
def test_a_missing_tensor_is_refused(key: str, tmp_path: Path) -> None:
    model = make_model()
    remembering(model).save(tmp_path / "file", precision="8 bits")
    change(tmp_path / "file", key, None)
    with pytest.raises(ValueError, match=r"incomplete|damaged"):
        EWC.load(tmp_path / "file", model)


def test_other_damage_is_refused(tmp_path: Path) -> None:
    model = make_model()
    path = tmp_path / "file"
    for metadata, message in (
        ({"storage": "{"}, "its storage is not JSON"),
        ({"storage": "{}"}, "it has no 'anchors'"),
        ({"storage": json.dumps({"anchors": False, "digests": {}})}, "it has no '"),
    ):
        remembering(model).save(path)
        change(path, "values", load_file(path)["values"], **metadata)
        with pytest.raises(ValueError, match=message):
            EWC.load(path, model)
    remembering(model).save(path)
    change(path, "values", None)
    with pytest.raises(ValueError, match="expected the state of an EWC memory"):
        EWC.load(path, model)
