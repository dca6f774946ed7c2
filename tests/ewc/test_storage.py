"""A memory saved is a memory loaded, bit for bit or in fewer bits, and only into its own model."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import ewc
from ewc import EWC, storage
from ewc.storage import OCTAVES, RELATIVE_ERROR, decode, encode, read_tensors, write_tensors


def make_model(hidden=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def filled(model, **options):
    memory = EWC(model, **{"strength": 0.1, "decay": 1.0, **options})
    for seed in range(3):
        shake(model, seed)
        generator = torch.Generator().manual_seed(seed)
        precision = {
            name: torch.rand(p.shape, generator=generator) for name, p in model.named_parameters()
        }
        memory.anchor(precision, task=f"täsk {seed}")
    shake(model, 9)
    return memory


def shake(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator))


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(state):
    return safetensors.torch.load(safetensors.torch.save(state))


@pytest.mark.parametrize("through", [dict, through_torch, through_safetensors])
@pytest.mark.parametrize("options", [{}, {"decay": 0.3}, {"keep_tasks": True}])
def test_a_memory_survives_the_disk_bit_for_bit(through, options):
    model = make_model()
    memory = filled(model, **options)
    state = through(memory.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())

    fresh = EWC(model, strength=1.0, keep_tasks=options.get("keep_tasks", False))
    fresh.load_state_dict(state)
    assert (fresh.strength, fresh.decay, fresh.tasks) == (0.1, memory.decay, memory.tasks)
    assert torch.equal(fresh.penalty(), memory.penalty())

    for each in (memory, fresh):
        if options.get("keep_tasks"):
            each.forget("täsk 1")
        each.anchor(2.0, task="next")
    shake(model, 10)
    assert torch.equal(fresh.penalty(), memory.penalty())


def test_the_state_is_a_copy_both_ways():
    model = make_model()
    memory = filled(model)
    before = memory.penalty()
    state = memory.state_dict()
    fresh = EWC(model, strength=1.0)
    fresh.load_state_dict(state)
    for value in state.values():
        value.zero_()
    assert torch.equal(memory.penalty(), before)
    assert torch.equal(fresh.penalty(), before)


def test_an_empty_memory_can_be_saved_too():
    model = make_model()
    fresh = EWC(model, strength=1.0)
    fresh.load_state_dict(through_safetensors(EWC(model, strength=2.0).state_dict()))
    assert (fresh.strength, fresh.tasks) == (2.0, ())


def test_a_head_that_grew_before_saving_is_loaded_grown():
    model = make_model()
    memory = filled(model, keep_tasks=True)
    model[2] = nn.Linear(5, 7)
    fresh = EWC(model, strength=1.0, keep_tasks=True)
    fresh.load_state_dict(through_safetensors(memory.state_dict()))
    assert torch.equal(fresh.penalty(), memory.penalty())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_model(hidden=6), r"'0.weight' was of shape \(5, 4\) and is of shape \(6, 4\)"),
        (make_model(hidden=4), r"'0.weight' was of shape \(5, 4\) and is of shape \(4, 4\)"),
        (nn.Sequential(nn.Linear(4, 5)), r"'2.weight' was of shape \(3, 5\) and is absent"),
    ],
)
def test_another_architecture_is_refused_by_the_first_mismatch(other, message):
    state = filled(make_model()).state_dict()
    memory = EWC(other, strength=1.0, decay=0.5)
    memory.anchor(1.0, task="own")
    with pytest.raises(ValueError, match=message):
        memory.load_state_dict(state)
    assert (memory.strength, memory.decay, memory.tasks) == (1.0, 0.5, ("own",))


def test_a_head_left_out_may_differ():
    trunk = make_model()
    memory = EWC(trunk, strength=1.0, parameters="!2.*")
    memory.anchor(1.0, task="A")
    state = memory.state_dict()
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 9))
    fresh = EWC(other, strength=1.0, parameters="!2.*")
    fresh.load_state_dict(state)
    assert fresh.tasks == ("A",)


def added(model):
    model.append(nn.Linear(3, 3))


def removed(model):
    del model[1]


def reshaped(model):
    model[1] = nn.Linear(4, 9)
    for p in model[1].parameters():
        p.requires_grad_(False)


@pytest.mark.parametrize("change", [added, removed, reshaped])
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_parameters_that_are_not_held_may_differ(change, keep_tasks):
    """Frozen when the memory was filled, they are matched by its selection and yet not held."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5))
    for p in model[1].parameters():
        p.requires_grad_(False)
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    memory.anchor(1.0, task="A")
    state = memory.state_dict()
    change(model)
    fresh = EWC(model, strength=2.0, keep_tasks=keep_tasks)
    fresh.load_state_dict(state)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert fresh.tasks == ("A",)
    assert fresh.penalty().item() == pytest.approx(20 / 2)


def test_the_names_in_a_state_stay_those_of_its_format() -> None:
    """Attributes may be renamed, what is in saved files may not."""
    memory = EWC(make_model(), budget=0.1)
    memory.anchor(1.0)
    values = json.loads(bytes(memory.state_dict()["values"].tolist()))
    assert list(values["budget"]) == [
        *("budget", "strength", "wall", "estimate", "interval", "wait", "age", "gain")
    ]
    assert list(values) == [
        *("format", "strength", "budget", "decay", "curvature", "center", "layers", "forces"),
        *("keep_tasks", "tasks", "labels", "bottoms", "fingerprint"),
    ]
    del values["fingerprint"]  # as in states that were saved before there was one
    older = torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)
    memory.load_state_dict(memory.state_dict() | {"values": older})
    assert memory.tasks == ("task 1",)


def test_a_state_of_another_format_is_refused_and_changes_nothing():
    model = make_model()
    state = filled(model).state_dict()
    values = json.loads(bytes(state["values"].tolist()))
    fresh = EWC(model, strength=1.0)
    for number in (1, 4, 6):
        values["format"] = number
        other = state | {
            "values": torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)
        }
        with pytest.raises(ValueError, match=rf"of format 5, got {number}: .* another version"):
            fresh.load_state_dict(other)
    assert fresh.tasks == ()


def test_states_of_another_kind_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match="state of an EWC memory"):
        EWC(model, strength=1.0).load_state_dict(model.state_dict())
    incomplete = filled(model).state_dict()
    del incomplete["total.anchor.0.weight"]
    with pytest.raises(ValueError, match="the state is incomplete"):
        EWC(model, strength=1.0).load_state_dict(incomplete)
    with pytest.raises(ValueError, match="keep_tasks=False, not True"):
        EWC(model, strength=1.0, keep_tasks=True).load_state_dict(filled(model).state_dict())


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("keep_tasks", [False, True, "cpu"])
def test_a_loaded_memory_is_the_one_that_was_saved(
    model: nn.Module, keep_tasks: bool | str, tmp_path: Path
) -> None:
    memory = EWC(model, strength=7.0, decay=0.5, keep_tasks=keep_tasks)
    for task in "AB":
        memory.anchor(torch.rand(1).item(), task=task)
        with torch.no_grad():
            model.weight += 0.1
    memory.save(tmp_path / "memory.safetensors")
    loaded = EWC.load(tmp_path / "memory.safetensors", model)
    assert repr(loaded) == repr(memory) == "EWC(strength=7.0, decay=0.5, tasks=['A', 'B'])"
    state = loaded.state_dict()
    assert state.keys() == memory.state_dict().keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in memory.state_dict().items())


def test_where_tasks_are_kept_may_be_chosen(model: nn.Module, tmp_path: Path) -> None:
    memory = EWC(model, strength=7.0, keep_tasks=True)
    memory.anchor(1.0, task="A")
    memory.save(tmp_path / "file")
    loaded = EWC.load(tmp_path / "file", model, keep_tasks="cpu")
    assert loaded._wells.storage == torch.device("cpu")
    with pytest.raises(ValueError, match="keep_tasks=True"):
        EWC.load(tmp_path / "file", model, keep_tasks=False)


def test_the_file_must_be_among_the_selected(model: nn.Module, tmp_path: Path) -> None:
    memory = EWC(model, strength=7.0, parameters="weight")
    memory.anchor(1.0)
    memory.save(tmp_path / "file")
    loaded = EWC.load(tmp_path / "file", model, parameters="weight")
    assert list(loaded.consolidate([torch.randn(8, 4)])) == ["weight"]
    with pytest.raises(ValueError, match="which is not selected"):
        EWC.load(tmp_path / "file", model, parameters="bias")


def test_a_strength_or_a_budget_may_replace_the_one_in_the_file(
    model: nn.Module, tmp_path: Path
) -> None:
    memory = EWC(model, strength=7.0)
    memory.anchor(1.0, task="A")
    memory.save(tmp_path / "file")
    assert EWC.load(tmp_path / "file", model, strength=3.0).strength == 3.0
    loaded = EWC.load(tmp_path / "file", model, budget=0.1)
    assert (loaded.budget, loaded.tasks) == (0.1, ("A",))
    with pytest.raises(ValueError, match="expected a strength or a budget"):
        EWC.load(tmp_path / "file", model, strength=3.0, budget=0.1)


def test_processes_and_statistics_are_chosen_when_loading(model: nn.Module, tmp_path: Path) -> None:
    memory = EWC(model, strength=7.0)
    memory.anchor(1.0)
    memory.save(tmp_path / "file")
    loaded = EWC.load(tmp_path / "file", model, process_group="local", statistics="free")
    assert loaded._ranks.group == "local"
    assert loaded._statistics == "free"


def test_a_task_name_that_a_file_cannot_keep_is_refused(model: nn.Module) -> None:
    memory = EWC(model, strength=7.0)
    with pytest.raises(TypeError, match=r"name of a task to be a string, got \('A', 1\)"):
        memory.anchor(1.0, task=("A", 1))  # type: ignore[arg-type]
    assert memory.tasks == ()


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)}


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(storage.os, function, fail)
    with pytest.raises(OSError, match="no space left"):
        write_tensors(tmp_path / "file", {"c": torch.ones(3)}, {})
    assert read_tensors(tmp_path / "file").tensors.keys() == TENSORS.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_it_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(storage.os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(storage.os, "replace", lambda *a: (calls.append("rename"), replace(*a)))
    write_tensors(tmp_path / "file", TENSORS, {})
    assert calls == ["sync", "rename", "sync"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is none at"):
        read_tensors(tmp_path / "file")
    save_file(TENSORS, tmp_path / "fisher")
    with pytest.raises(ValueError, match=r"another safetensors file; .* memory\.consolidate"):
        read_tensors(tmp_path / "fisher")
    torch.save(TENSORS, tmp_path / "pickle")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        read_tensors(tmp_path / "pickle")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    content = (tmp_path / "file").read_bytes()
    for length in (0, 7, 60, len(content) - 1):
        (tmp_path / "file").write_bytes(content[:length])
        with pytest.raises(ValueError, match="damaged or not a safetensors file"):
            read_tensors(tmp_path / "file")


def test_the_relative_error_is_bounded() -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(10_000, generator=generator, dtype=torch.float64) * -OCTAVES
    values = 7.3e-5 * torch.exp2(exponents)
    values[0] = 7.3e-5
    read = decode(*encode(values)).double()
    assert encode(values).codes.dtype == torch.uint8
    assert float((read / values - 1).abs().max()) <= RELATIVE_ERROR * (1 + 1e-6)
    assert abs(float((read / values - 1).mean())) < 1e-3  # no bias
    assert RELATIVE_ERROR < 0.0447
    assert float(read[0]) == pytest.approx(7.3e-5, rel=1e-7)


def test_only_what_the_codes_do_not_reach_is_kept_beside_them() -> None:
    values = torch.tensor([[0.0, 1.0], [1e-12, 2.0**-32], [3e-10, 1e-40]])
    encoded = encode(values)
    assert encoded.at.tolist() == [2, 5]
    assert torch.equal(encoded.rest, torch.tensor([1e-12, 1e-40]))
    assert decode(*encoded)[1, 0] == values[1, 0]
    assert decode(encoded.codes, encoded.top)[1, 0] == 0.0  # as older files are read
    tiny = torch.tensor([1e-40, 3e-44, 0.0])
    assert torch.equal(decode(*encode(tiny)), tiny)


BATCHES = [torch.randn(40, 64, generator=torch.Generator().manual_seed(0))]


def wide_model(seed: int = 0) -> nn.Sequential:
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
    model = wide_model()
    memory = remembering(model)
    memory.save(tmp_path / "file", precision=precision, anchors=anchors)
    loaded = EWC.load(tmp_path / "file", model).state_dict()
    for key, tensor in memory.state_dict().items():
        if ".precision." in key:
            change = (loaded[key] - tensor).abs() / tensor
            assert 0 < float(change.max()) <= error * (1 + 1e-6)
        else:
            assert torch.equal(loaded[key], tensor)


def wide_range(model: nn.Module) -> dict[str, torch.Tensor]:
    """A precision over the whole range of float32, as dead units and rare inputs leave it."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.exp2(torch.rand(p.shape, generator=generator) * 200 - 140)
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("keep_tasks", [False, True])
def test_no_entry_of_a_precision_is_lost_in_8_bits(keep_tasks: bool, tmp_path: Path) -> None:
    model = wide_model()
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    memory.anchor(wide_range(model))
    memory.save(tmp_path / "file", precision="8 bits")
    loaded = EWC.load(tmp_path / "file", model).state_dict()
    saved = memory.state_dict()
    assert loaded.keys() == saved.keys()
    for key, tensor in saved.items():
        if ".precision." in key:
            change = (loaded[key].double() / tensor.double() - 1).abs()
            assert float(change.max()) <= RELATIVE_ERROR * (1 + 1e-6)


def test_a_file_in_8_bits_that_is_older_has_zeros_for_what_is_too_small(tmp_path: Path) -> None:
    model = wide_model()
    memory = EWC(model, strength=1.0)
    memory.anchor(wide_range(model))
    memory.save(tmp_path / "file", precision="8 bits")
    for name, _ in model.named_parameters():
        for prefix in ("at", "rest"):
            change(tmp_path / "file", f"{prefix}.total.precision.{name}", None)
    loaded = EWC.load(tmp_path / "file", model).state_dict()["total.precision.0.weight"]
    saved = memory.state_dict()["total.precision.0.weight"]
    assert torch.equal(loaded == 0, saved < 2**-32.06 * saved.max())


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("at", None),
        ("rest", None),
        ("at", torch.tensor([-1], dtype=torch.int32)),
        ("at", torch.tensor([64 * 48], dtype=torch.int32)),
        ("rest", torch.tensor([1.0, 2.0])),
        ("rest", torch.tensor([float("nan")])),
    ],
)
def test_small_entries_that_do_not_fit_are_refused(
    key: str, tensor: torch.Tensor | None, tmp_path: Path
) -> None:
    model = wide_model()
    memory = EWC(model, strength=1.0)
    precision = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    precision["0.weight"][3, 5] = 1e-20
    memory.anchor(precision)
    memory.save(tmp_path / "file", precision="8 bits")
    change(tmp_path / "file", f"{key}.total.precision.0.weight", tensor)
    with pytest.raises(ValueError, match="damaged"):
        EWC.load(tmp_path / "file", model)


def test_the_penalty_survives(tmp_path: Path) -> None:
    model = wide_model()
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
    model = wide_model()
    memory = remembering(model)
    with torch.no_grad():
        model[2].bias.add_(1e-3)
    with pytest.raises(ValueError, match=r"anchors=False leaves out .* '2\.bias' differs"):
        memory.save(tmp_path / "file", anchors=False)
    assert not list(tmp_path.iterdir())


def test_without_anchors_the_model_must_have_the_weights(tmp_path: Path) -> None:
    remembering(wide_model()).save(tmp_path / "file", anchors=False)
    with pytest.raises(ValueError, match=r"for a model with other weights: '0\.\w+' is not"):
        EWC.load(tmp_path / "file", wide_model(seed=1))
    assert EWC.load(tmp_path / "file", wide_model()).tasks == ("A",)


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    model = wide_model()
    card = {"data": "Gauß", "kind": "exact", "samples": 40, "notes": "free text"}
    remembering(model).save(tmp_path / "file", card=card)
    parameters = sum(p.numel() for p in model.parameters())
    assert ewc.read_card(tmp_path / "file") == {
        **{"model": "Sequential", "parameters": parameters, "tasks": ["A"]},
        **{"version": ewc.__version__, **card},
    }


def test_a_card_that_is_no_json_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        remembering(wide_model()).save(tmp_path / "file", card={"data": BATCHES})
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
    model = wide_model()
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
    model = wide_model()
    remembering(model).save(tmp_path / "file")
    with pytest.raises(
        ValueError, match=r"rename has '3\.bias', which is not in the file; closest"
    ):
        EWC.load(tmp_path / "file", model, rename={"3.bias": "0.bias"})
    with pytest.raises(ValueError, match="two parameters the same name"):
        EWC.load(tmp_path / "file", model, rename=lambda name: "0.bias")


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected precision to be one of 'full', 'bfloat16'"):
        remembering(wide_model()).save(tmp_path / "file", precision="int4")  # type: ignore[arg-type]


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
    model = wide_model()
    remembering(model).save(tmp_path / "file")
    change(tmp_path / "file", "total.precision.2.bias", torch.full((20,), bad))
    with pytest.raises(ValueError, match=r"is damaged: the precision of '2\.bias' has NaN"):
        EWC.load(tmp_path / "file", model)


@pytest.mark.parametrize("key", ["total.anchor.0.bias", "top.total.precision.0.bias"])
def test_a_missing_tensor_is_refused(key: str, tmp_path: Path) -> None:
    model = wide_model()
    remembering(model).save(tmp_path / "file", precision="8 bits")
    change(tmp_path / "file", key, None)
    with pytest.raises(ValueError, match=r"incomplete|damaged"):
        EWC.load(tmp_path / "file", model)


def test_other_damage_is_refused(tmp_path: Path) -> None:
    model = wide_model()
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
