"""A memory as a flat dict of tensors, and back; as a file, and as a directory in the Hub's form.

Every entry is a separate tensor, so that `torch.save` and safetensors accept it as it is. Wells are
under `total.*` and `task.<number>.*`, and all plain values are JSON in the bytes of `values`.

A directory has memory.safetensors, which is what `EWC.save` writes, config.json with the model that
it is of and a fingerprint of its weights, and a README.md with the same for people.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ewc.curvature.kronecker import AdapterLayer, Factor, Layer
from ewc.curvature.tasks import TaskWells
from ewc.curvature.wells import Well
from ewc.parameters import at_least_float32
from ewc.pull.kronecker import HeldForce, HeldForces
from ewc.strength import Budget, FixedStrength
from ewc.version import __version__

FILE, CONFIG, README = "memory.safetensors", "config.json", "README.md"
SAMPLES = 4096  # numbers of each weight that are compared, at least, if it has so many
Fingerprint = dict[str, str]


def fingerprint_of(weights: Iterable[Tensor]) -> Fingerprint:
    """Return a fingerprint of weights, in any order and on any device.

    It is of some thousand numbers of each weight, rounded to bfloat16 and to float16. So the
    same checkpoint has the same one in float64, float32 and bfloat16, and in float16 the same of
    the two.
    """
    sums = {"bfloat16": 0, "float16": 0}
    for weight in weights:
        flat = weight.detach().reshape(-1)
        values = flat[:: max(1, len(flat) // SAMPLES)].to("cpu", torch.float32)
        for name in sums:
            rounded = bytes(values.to(getattr(torch, name)).view(torch.uint8).tolist())
            shaped = str(tuple(weight.shape)).encode() + rounded
            sums[name] += int.from_bytes(hashlib.blake2b(shaped, digest_size=8).digest())
    return {name: f"{total % 2**64:016x}" for name, total in sums.items()}


def of_same_weights(expected: Fingerprint, weights: Iterable[Tensor]) -> bool:
    """Whether weights have a fingerprint, compared in a dtype that they are as precise as."""
    weights = list(weights)
    halves = any(weight.dtype == torch.float16 for weight in weights)
    name = "float16" if halves else "bfloat16"
    return fingerprint_of(weights)[name] == expected[name]


def model_name(model: nn.Module) -> str:
    """Return the name of a model: that on the Hub, of its directory, or of its class."""
    name: str = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    if os.path.sep in name and (Path(name).is_absolute() or Path(name).exists()):
        name = Path(name).name  # a place on this machine is of no use to others
    return name or type(model).__name__


def write_description(directory: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json` and the card beside a memory's file."""
    content = json.dumps(dict(config), indent=2, ensure_ascii=False, allow_nan=False)
    _write(directory / CONFIG, content + "\n")
    _write(directory / README, _readme(config))


def read_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a directory says of its memory; raise if it is not one of ours."""
    file = Path(directory) / CONFIG
    if not file.is_file():
        raise FileNotFoundError(
            f"expected a directory that memory.save_pretrained() wrote, but there is no {file}"
        )
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it is not JSON") from error
    if not isinstance(config, dict) or config.get("library_name") != "ewc":
        raise ValueError(
            f"expected a directory that memory.save_pretrained() wrote, but {file} is of something "
            "else, such as a model"
        )
    return config


def refusal(directory: str | os.PathLike[str], config: Mapping[str, Any], model: nn.Module) -> str:
    """Return the first half of an error: which model a memory belongs to, and which came."""
    was = _named(config["model"], config["model_class"])
    now = _named(model_name(model), type(model).__name__)
    return f"{directory} has the memory of {was}, and this model is {now}"


def _named(name: str, kind: str) -> str:
    return repr(name) if name == kind else f"{name!r} (a {kind})"


def _write(path: Path, text: str) -> None:
    """Write a text file, all of it or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _readme(config: Mapping[str, Any]) -> str:
    """Return a card as the Hub shows it: what is known at the top, then how to use it."""
    name = config["model"]
    on_hub = name != config["model_class"] and "/" in name
    head = ["---", "library_name: ewc", *([f"base_model: {name}"] if on_hub else [])]
    head += ["tags:", "- ewc", "- elastic-weight-consolidation", "- continual-learning", "---"]
    rows = {
        "model": f"`{name}`",
        "tasks": ", ".join(config["tasks"]),
        "curvature": config["curvature"],
        "protected weights": f"{config['parameters']:,}",
        **{key: _plain(value) for key, value in config["card"].items()},
        "fingerprint": f"`{config['fingerprint']['bfloat16']}`",
        "written by": f"ewc {__version__}",
    }
    table = [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join(
        [
            *head,
            "",
            f"# What {name} knows, as a memory of its weights",
            "",
            "How much each direction of the weights matters to what the model knows. With it, the",
            "model can be fine-tuned on something else and forgets less, without its old data.",
            "",
            "| | |",
            "| --- | --- |",
            *table,
            "",
            "```python",
            "from ewc.integrations.transformers import EWCCallback",
            "",
            "trainer = Trainer(model, args, train_dataset=..., callbacks=[EWCCallback(DIR)])",
            "```",
            "",
            "In any other loop: `memory = ewc.EWC.from_pretrained(DIR, model)`, then",
            "`memory.attach(optimizer)`. It is for the model with this fingerprint alone, and",
            "refuses others.",
            "",
        ]
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


OCTAVES = 32
STEPS_PER_OCTAVE = 254 / OCTAVES
RELATIVE_ERROR = 2 ** (0.5 / STEPS_PER_OCTAVE) - 1  # 4.5 %


class Encoded(NamedTuple):
    """A tensor in 8 bits per element.

    Attributes:
        codes: one per element, in the shape of the tensor.
        top: the largest element.
        at: the positions, in the flat tensor, of elements > 0 that no code reaches.
        rest: these elements.
    """

    codes: Tensor
    top: Tensor
    at: Tensor
    rest: Tensor


def encode(values: Tensor) -> Encoded:
    """Return a tensor of finite elements >= 0 in 8 bits each."""
    wide = values.double()
    top = wide.max() if wide.numel() else wide.new_zeros(())
    codes = (255 + STEPS_PER_OCTAVE * (wide / top).log2()).round().clamp(0, 255)
    codes = codes.nan_to_num(nan=0.0)  # 0/0 in a tensor of zeros
    codes[wide < torch.finfo(torch.float32).tiny] = 0
    at = ((codes == 0) & (wide > 0)).flatten().nonzero().flatten()
    positions = at.int() if wide.numel() <= torch.iinfo(torch.int32).max else at
    return Encoded(codes.to(torch.uint8), top, positions, values.flatten()[at])


def decode(
    codes: Tensor, top: Tensor, at: Tensor | None = None, rest: Tensor | None = None
) -> Tensor:
    """Return what was encoded, in float32, or in the dtype of `rest` if it is wider."""
    wide = top.double() * torch.exp2((codes.double() - 255) / STEPS_PER_OCTAVE)
    values = wide.where(codes > 0, 0.0).to(torch.float32 if rest is None else rest.dtype)
    if at is not None and rest is not None:
        values.view(-1)[at.long()] = rest
    return values


FILE_KIND = "ewc-memory"  # under the key "kind" of a file's metadata


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to a file, all of it or nothing."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(dict(tensors), beside, metadata={"kind": FILE_KIND, **metadata})
        _sync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)  # the new name survives a crash too


class StoredTensors(NamedTuple):
    """The content of a file, and where it was."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    path: str | os.PathLike[str]


def read_tensors(path: str | os.PathLike[str]) -> StoredTensors:
    """Return the content of a file; raise if it is not one of ours."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected a file of an EWC memory, but there is none at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != FILE_KIND:
                raise ValueError(
                    f"expected a file that memory.save() wrote, but {path} is another safetensors "
                    "file; a Fisher of single tensors goes to memory.consolidate(load_file(path))"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    return StoredTensors(tensors, metadata, path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FORMAT = 5
FIELDS = ("precision", "anchor", "remainder")
# Of a layer: its factors, or their eigenvectors and eigenvalues.
LAYER_FIELDS = ("inputs", "input_values", "outputs", "output_values")
FORCE = "force."  # before the name of a layer: the force that a pull under way holds


def pack(
    wells: TaskWells,
    control: FixedStrength | Budget,
    labels: Iterable[int] = (),
    curvature: str = "diagonal",
    forces: HeldForces | None = None,
    fingerprint: Fingerprint | None = None,
) -> dict[str, Tensor]:
    """Return a memory as one flat dict of tensors.

    Args:
        wells: the wells of all tasks.
        control: the strength or the budget.
        labels: the class labels that the tasks had, as far as they were seen.
        curvature: the kind of curvature that the tasks leave.
        forces: those on layers with Kronecker factors.
        fingerprint: that of the weights at the last consolidation, if there was one.
    """
    forces = forces or HeldForces()
    state = _pack_well("total", wells.total)
    for number, well in enumerate(wells.kept.values()):
        state |= _pack_well(f"task.{number}", well)
    values = {
        "format": FORMAT,
        "strength": control.strength,
        "budget": _budget_values(control) if isinstance(control, Budget) else None,
        "decay": wells.decay,
        "curvature": curvature,
        "center": wells.center,
        "layers": [_layer_values(well) for well in (wells.total, *wells.kept.values())],
        "forces": {
            name: [held.waited, held.distance, held.scale] for name, held in forces.layers.items()
        },
        "keep_tasks": wells.keep_tasks,
        "tasks": list(wells.tasks),
        "labels": sorted(labels),
        "bottoms": [wells.total.offset, *(well.offset for well in wells.kept.values())],
        "fingerprint": fingerprint,
    }
    state |= {FORCE + name: held.force.clone() for name, held in forces.layers.items()}
    state["values"] = _as_bytes(values)
    return state


STORED_NAMES = {"strength_at_budget": "wall"}  # of fields of a budget that were called otherwise


def _budget_values(budget: Budget) -> dict[str, Any]:
    return {STORED_NAMES.get(name, name): value for name, value in asdict(budget).items()}


def _budget_of(values: Mapping[str, Any]) -> Budget:
    return Budget(**{f.name: values[STORED_NAMES.get(f.name, f.name)] for f in fields(Budget)})


def _as_bytes(values: Mapping[str, Any]) -> Tensor:
    return torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)


def unpack(
    state: Mapping[str, Tensor],
    wells: TaskWells,
    parameters: Mapping[str, Tensor],
    curvature: str = "diagonal",
) -> tuple[TaskWells, FixedStrength | Budget, set[int], HeldForces]:
    """Return wells, strength or budget, labels and forces of a saved memory.

    Raises at the first mismatch.

    Args:
        state: what `pack` returned.
        wells: those of the memory that the state is loaded into.
        parameters: all parameters that the memory selects. The saved ones must be among them.
        curvature: that of the memory.
    """
    values = _values(state)
    if values.get("format") != FORMAT:
        raise ValueError(
            f"expected a state of format {FORMAT}, got {values.get('format')}: it was saved by "
            "another version of ewc, which can read it"
        )
    total, *kept = (
        _unpack_well(prefix, state, offset, layers)
        for prefix, offset, layers in zip(
            _prefixes(values), values["bottoms"], values["layers"], strict=True
        )
    )
    if values["curvature"] != curvature:
        raise ValueError(
            f"the state is of a memory with curvature={values['curvature']!r}, not {curvature!r}"
        )
    for well in (total, *kept):
        _check_shapes(well, parameters)
    if values["keep_tasks"] != wells.keep_tasks:
        raise ValueError(
            f"the state is of a memory with keep_tasks={values['keep_tasks']}, "
            f"not {wells.keep_tasks}"
        )
    kept_by_task = dict(zip(values["tasks"], kept, strict=False))
    wells = replace(wells, center=values["center"])
    loaded = wells.loaded(values["decay"], values["tasks"], total, kept_by_task, parameters)
    forces = HeldForces(
        {
            name: HeldForce(
                state[FORCE + name].clone().to(loaded.total.layers[name].inputs.matrix), *rest
            )
            for name, rest in values["forces"].items()
        }
    )
    budget = values["budget"]
    control = FixedStrength(values["strength"]) if budget is None else _budget_of(budget)
    return loaded, control, set(values["labels"]), forces


def parameter_name(key: str) -> str:
    """Return the parameter that an entry of a state belongs to; "" for one that belongs to none."""
    match = re.fullmatch(rf"(?:total|task\.\d+)\.(?:{'|'.join(FIELDS)})\.(.+)", key)
    return match[1] if match else ""


def curvature_of(state: Mapping[str, Tensor]) -> Any:
    """Return the kind of curvature of a saved memory."""
    return _values(state)["curvature"]


def fingerprint_in(state: Mapping[str, Tensor]) -> Fingerprint | None:
    """Return the fingerprint of the weights at the last consolidation of a saved memory."""
    return _values(state).get("fingerprint")


def keeps_tasks(state: Mapping[str, Tensor]) -> bool:
    """Return whether a saved memory kept each task's own well."""
    return bool(_values(state)["keep_tasks"])


def _values(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the plain values of a saved memory."""
    if "values" not in state:
        raise ValueError(f"expected the state of an EWC memory, got the keys {list(state)[:3]}")
    values: dict[str, Any] = json.loads(bytes(state["values"].tolist()))
    return values


def _prefixes(values: Mapping[str, Any]) -> list[str]:
    return ["total", *(f"task.{number}" for number in range(len(values["bottoms"]) - 1))]


def _pack_well(prefix: str, well: Well) -> dict[str, Tensor]:
    tensors = {
        f"{prefix}.{field}.{name}": tensor.clone().contiguous()
        for field in FIELDS
        for name, tensor in getattr(well, field).items()
    }
    for name, layer in well.layers.items():
        parts = (*_parts(layer.inputs), *_parts(layer.outputs))
        for field, part in zip(LAYER_FIELDS, parts, strict=True):
            if part is not None:
                tensors[f"{prefix}.{field}.{name}"] = part.clone().contiguous()
    return tensors


def _parts(factor: Factor) -> tuple[Tensor, Tensor | None]:
    return factor.matrix, factor.values


def _layer_values(well: Well) -> dict[str, dict[str, Any]]:
    """Return the plain values of all layers, by name."""
    by_layer = {}
    for name, layer in well.layers.items():
        names = ["tasks", "ridge", "bias", "inputs_first", "positions"]
        if isinstance(layer, AdapterLayer):
            names += ["scaling", "at_zero"]
        by_layer[name] = {each: getattr(layer, each) for each in names}
        by_layer[name]["rests"] = [layer.inputs.rest, layer.outputs.rest]
    return by_layer


def _unpack_well(
    prefix: str,
    state: Mapping[str, Tensor],
    offset: float,
    layers: Mapping[str, Mapping[str, Any]],
) -> Well:
    by_field: dict[str, dict[str, Tensor]] = {
        field: {
            key.removeprefix(start): tensor.clone()
            for key, tensor in state.items()
            if key.startswith(start)
        }
        for field in (*FIELDS, *LAYER_FIELDS)
        for start in [f"{prefix}.{field}."]
    }
    a, a_values, g, g_values = (by_field.pop(field) for field in LAYER_FIELDS)
    if not (a.keys() == g.keys() == layers.keys() and a_values.keys() == g_values.keys()):
        raise ValueError("the state is incomplete: expected two factors for each layer")
    made = {}
    for name, own in layers.items():
        rest = own["rests"]
        inputs = Factor(a[name], a_values.get(name), rest[0])
        outputs = Factor(g[name], g_values.get(name), rest[1])
        plain = {field: value for field, value in own.items() if field != "rests"}
        kind = AdapterLayer if "scaling" in own else Layer
        made[name] = kind(inputs, outputs, **plain)
    return Well(offset=offset, layers=made, **by_field)


def _check_shapes(well: Well, parameters: Mapping[str, Tensor]) -> None:
    in_layers = well.layers.keys() | {n for layer in well.layers.values() if (n := layer.bias)}
    if well.precision.keys() | in_layers != well.anchor.keys():
        raise ValueError(
            "the state is incomplete: expected a precision and an anchor for each parameter"
        )
    for field in FIELDS:
        for name, tensor in getattr(well, field).items():
            shape = tuple(parameters[name].shape) if name in parameters else None
            if shape != tuple(tensor.shape):
                now = "absent or left out" if shape is None else f"of shape {shape}"
                raise ValueError(
                    "the state is of another architecture: "
                    f"{name!r} was of shape {tuple(tensor.shape)} and is {now}"
                )


PrecisionType = Literal["full", "bfloat16", "8 bits"]
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str]

# Before the key of a tensor in 8 bits: its largest number, and the positions and values of those
# that are too small for the codes. Without such there are none of the last two.
BESIDE = TOP, AT, REST = "top.", "at.", "rest."
KEY = re.compile(
    r"(?:top\.|at\.|rest\.)?(total|task\.\d+)\."
    r"(precision|anchor|remainder|inputs|input_values|outputs|output_values)\.(.+)"
)


def read_card(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the card of a saved memory: what it is of, and how it was made.

    Example:
        >>> import torch, ewc
        >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
        >>> memory.anchor(1.0, task="A")
        >>> memory.save("a.safetensors", card={"data": "random numbers", "samples": 8})
        >>> card = ewc.read_card("a.safetensors")
        >>> card["model"], card["data"], card["tasks"]
        ('Linear', 'random numbers', ['A'])
    """
    return dict(_plain_values(read_tensors(path).metadata, "card", path))


def save_state(
    path: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    precision: PrecisionType,
    anchors: bool,
    card: Mapping[str, Any],
) -> None:
    """Write the state of a memory to a file.

    Args:
        path: the file.
        state: what `EWC.state_dict()` returned.
        weights: the model's present weights, by name.
        precision: how precisions are stored.
        anchors: whether anchors are stored; without them they must be the present weights.
        card: what else to say about the memory.
    """
    if precision not in get_args(PrecisionType):
        known = ", ".join(map(repr, get_args(PrecisionType)))
        raise ValueError(f"expected precision to be one of {known}, got {precision!r}")
    stored: dict[str, Tensor] = {}
    digests: dict[str, str] = {}
    for key, tensor in state.items():
        _, field, name = _split(key)
        if key.startswith(FORCE):
            continue  # of a pull under way, which is for those who go on with the same training
        if field == "precision":
            stored |= _stored_precision(key, tensor, precision)
        elif field in ("inputs", "outputs") and precision != "full":
            stored[key] = tensor.to(torch.bfloat16)
        elif field == "anchor" and not anchors:
            _check_is_weight(name, tensor, weights)
            digests[name] = _digest(tensor)
        elif field != "remainder" or (precision == "full" and anchors):
            stored[key] = tensor
    storage = {"precision": precision, "anchors": anchors, "digests": digests}
    write_tensors(path, stored, {"card": _as_json(card), "storage": _as_json(storage)})


def load_state(
    file: StoredTensors,
    weights: Mapping[str, Tensor],
    *,
    rename: Rename | None,
    grow: bool,
) -> dict[str, Tensor]:
    """Return the state in a file, with the names and shapes of a model's weights.

    Args:
        file: what `read_tensors` returned.
        weights: the model's weights, by name.
        rename: from the names in the file to those of the model.
        grow: whether weights may have more rows or columns than in the file.
    """
    stored, metadata, path = file
    storage = _plain_values(metadata, "storage", path)
    new_names = _new_names(_names_in(stored), rename)
    try:
        return _with_weights(stored, storage, new_names, weights, grow, path)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}") from error


def _with_weights(
    stored: Mapping[str, Tensor],
    storage: Mapping[str, Any],
    new_names: Mapping[str, str],
    weights: Mapping[str, Tensor],
    grow: bool,
    path: object,
) -> dict[str, Tensor]:
    """Return the state that is stored, with the names, shapes and anchors of a model's weights."""
    state: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        prefix, field, name = _split(key)
        if not prefix:
            state[key] = tensor
            continue
        if key.startswith(BESIDE):
            continue
        values = _decoded(key, stored, path) if tensor.dtype == torch.uint8 else tensor
        values = values.to(at_least_float32(values.dtype))
        _check_values(field, name, values, path)
        new = new_names[name]
        if field in LAYER_FIELDS:
            state[f"{prefix}.{field}.{new}"] = values
            continue
        weight = _weight_like(new, values, weights, grow)
        state[f"{prefix}.{field}.{new}"] = _grown(values, weight)
        if field == "precision" and not storage["anchors"]:
            block = weight.detach()[_block(values)].to(at_least_float32(weight.dtype))
            _check_digest(new, block, storage["digests"][name])
            state[f"{prefix}.anchor.{new}"] = _grown(block, weight)
    return _with_layers(state, storage, new_names, weights)


def _with_layers(
    state: dict[str, Tensor],
    storage: Mapping[str, Any],
    new_names: Mapping[str, str],
    weights: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the state with the names of the model in the plain values of its layers.

    Factors that were rounded are made symmetric and orthogonal again, and anchors that were left
    out are the model's weights.
    """
    values = _values(state)
    values["forces"] = {}
    layers = []
    for prefix, own in zip(_prefixes(values), values["layers"], strict=True):
        renamed = {}
        for name, entries in own.items():
            bias = entries["bias"]
            new = new_names.get(name, name)
            bias_now = bias if bias is None else new_names.get(bias, bias)
            renamed[new] = {**entries, "bias": bias_now}
            rests = zip(("input", "output"), entries["rests"], strict=True)
            for part, rest in rests if storage["precision"] != "full" else ():
                _restore(state, f"{prefix}.{part}s.{new}", f"{prefix}.{part}_values.{new}", rest)
            for old, each in ((name, new), (bias, bias_now)):
                if not storage["anchors"] and old is not None and each is not None:
                    weight = weights[each].detach()
                    weight = weight.to(at_least_float32(weight.dtype), copy=True)
                    _check_digest(each, weight, storage["digests"][old])
                    state[f"{prefix}.anchor.{each}"] = weight
        layers.append(renamed)
    values["layers"] = layers
    return {**state, "values": _as_bytes(values)}


def _restore(state: dict[str, Tensor], matrix: str, values: str, rest: float) -> None:
    """Decompose a factor again, whose eigenvectors were rounded."""
    if values in state:
        vectors, eigenvalues = state[matrix], state[values]
        rounded = Factor(vectors.double(), eigenvalues.double(), rest).full()
        again = Factor(rounded).decomposed(vectors.shape[1])
        assert again.values is not None
        state[matrix] = again.matrix.to(eigenvalues.dtype)  # which were not rounded
        state[values] = again.values.to(eigenvalues.dtype)


def _split(key: str) -> tuple[str, str, str]:
    """Return the well, the field and the parameter of a key; three empty words for `values`."""
    match = KEY.fullmatch(key)
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _stored_precision(key: str, tensor: Tensor, precision: PrecisionType) -> dict[str, Tensor]:
    if precision == "8 bits":
        codes, top, at, rest = encode(tensor)
        small = {AT + key: at, REST + key: rest} if at.numel() else {}
        return {key: codes, TOP + key: top, **small}
    return {key: tensor.to(torch.bfloat16) if precision == "bfloat16" else tensor}


def _decoded(key: str, stored: Mapping[str, Tensor], path: object) -> Tensor:
    """Return the precision that is stored in 8 bits under a key."""
    codes, top = stored[key], stored[TOP + key]
    if AT + key not in stored and REST + key not in stored:
        return decode(codes, top)
    at, rest = stored[AT + key], stored[REST + key]
    if at.shape != rest.shape or not bool(((at >= 0) & (at < codes.numel())).all()):
        raise ValueError(f"{path} is damaged: {AT + key!r} has positions outside of the tensor")
    return decode(codes, top, at, rest)


def _new_names(names: set[str], rename: Rename | None) -> dict[str, str]:
    """Return the name in the model for each name in the file."""
    if rename is None:
        return {name: name for name in names}
    if isinstance(rename, Mapping):
        for name in rename.keys() - names:
            raise ValueError(
                f"rename has {name!r}, which is not in the file; {_closest(name, names)}"
            )
        new = {name: rename.get(name, name) for name in names}
    else:
        new = {name: rename(name) for name in names}
    if len(set(new.values())) < len(new):
        raise ValueError("rename gives two parameters the same name")
    return new


def _weight_like(name: str, values: Tensor, weights: Mapping[str, Tensor], grow: bool) -> Tensor:
    """Return the weight of this name; raise if it is missing or has another shape."""
    if name not in weights:
        raise ValueError(
            f"the file protects {name!r}, which the model has not, or which is not selected; "
            f"{_closest(name, weights)}. If it has another name there, use rename="
        )
    old, now = tuple(values.shape), tuple(weights[name].shape)
    if old == now:
        return weights[name]
    larger = len(old) == len(now) and all(a <= b for a, b in zip(old, now, strict=True))
    if not (larger and grow):
        advice = ": if it gained rows or columns at its end, use grow=True" if larger else ""
        raise ValueError(f"{name!r} has shape {old} in the file and {now} in the model{advice}")
    return weights[name]


def _closest(name: str, names: Mapping[str, Any] | set[str]) -> str:
    return "closest: " + ", ".join(get_close_matches(name, names, n=3, cutoff=0.0))


def _block(values: Tensor) -> tuple[slice, ...]:
    """Return the part of a larger tensor where these values belong: the leading block."""
    return tuple(slice(size) for size in values.shape)


def _grown(values: Tensor, weight: Tensor) -> Tensor:
    """Return the values in the shape of a weight, zero where it is larger."""
    if values.shape == weight.shape:
        return values
    grown = values.new_zeros(weight.shape)
    grown[_block(values)] = values
    return grown


def _digest(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()


def _check_is_weight(name: str, anchor: Tensor, weights: Mapping[str, Tensor]) -> None:
    if not torch.equal(anchor, weights[name].detach().to(anchor.dtype)):
        raise ValueError(
            f"anchors=False leaves out anchors that are the model's weights, but {name!r} differs "
            "from its anchor: save before training goes on, and only a single task"
        )


def _check_digest(name: str, block: Tensor, digest: str) -> None:
    if _digest(block) != digest:
        raise ValueError(
            f"the file was saved without anchors, for a model with other weights: {name!r} is not "
            "what it was. Load the checkpoint that the file belongs to, in the same dtype"
        )


def _check_values(field: str, name: str, values: Tensor, path: object) -> None:
    positive = field in ("precision", "input_values", "output_values")
    good = values.isfinite() & (values >= 0) if positive else values.isfinite()
    if not bool(good.all()):
        raise ValueError(
            f"{path} is damaged: the {field} of {name!r} has NaN, infinite or negative entries"
        )


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)


def _plain_values(metadata: Mapping[str, str], key: str, path: object) -> dict[str, Any]:
    if key not in metadata:
        raise ValueError(f"{path} has no {key}: expected a file that memory.save() wrote")
    try:
        values: dict[str, Any] = json.loads(metadata[key])
    except ValueError as error:
        raise ValueError(f"{path} is damaged: its {key} is not JSON") from error
    return values


def automatic_card(model: nn.Module, parameters: int, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Return what is known of a memory without asking: its model, its size, its tasks."""
    known = {"model": model_name(model), "parameters": parameters, "tasks": list(tasks)}
    return {**known, "version": __version__}


def saved_shapes(file: StoredTensors, rename: Rename | None) -> dict[str, tuple[int, ...] | None]:
    """Return the weights that a file protects, by their names in the model.

    With the shape that each had at saving; None where the file has no tensor of that shape.
    """
    new_names = _new_names(_names_in(file.tensors), rename)
    shapes: dict[str, tuple[int, ...] | None] = dict.fromkeys(new_names.values())
    for key, tensor in file.tensors.items():
        prefix, field, name = _split(key)
        if prefix and field in ("precision", "anchor") and not key.startswith(BESIDE):
            shapes[new_names[name]] = tuple(tensor.shape)
    return shapes


def _names_in(stored: Mapping[str, Tensor]) -> set[str]:
    """Return the weights that are in a file: those with a tensor, and the biases of layers."""
    names = {_split(key)[2] for key in stored} - {""}
    layers = (layer for own in _values(stored)["layers"] for layer in own.values())
    return names | {layer["bias"] for layer in layers} - {None}
