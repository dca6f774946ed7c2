"""A memory as a directory, in the form of the Hub: the file, what it belongs to, and a README card.

DIR/memory.safetensors    what `EWC.save` writes
DIR/config.json           the model that it is of, with a fingerprint of its weights
DIR/README.md             the same for people
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
            rounded = values.to(getattr(torch, name)).view(torch.int16).numpy().tobytes()
            shaped = str(tuple(weight.shape)).encode() + rounded
            sums[name] += int.from_bytes(hashlib.blake2b(shaped, digest_size=8).digest())
    return {name: f"{total % 2**64:016x}" for name, total in sums.items()}


def of_same_weights(expected: Fingerprint, weights: Iterable[Tensor]) -> bool:
    """Whether weights have a fingerprint, compared in a type that they are as precise as."""
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
