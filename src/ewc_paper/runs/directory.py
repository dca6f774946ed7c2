"""A run directory: all that a run needs to go on, or to be drawn years later.

config.json     every option, with the seed and the versions; written once
metrics.jsonl   one JSON object a line, one line a measurement; only ever appended to
checkpoint.safetensors, previous.safetensors
parts/<name>/   for a run of several networks: a run directory each
figures/
"""

import fcntl
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ewc_paper.errors import RunError
from ewc_paper.runs.checkpoint import load_checkpoint, save_checkpoint
from ewc_paper.runs.files import (
    parse_record,
    read_bytes,
    refuse_links,
    sync_directory,
    write_synced,
    writing_to,
)

Row = dict[str, Any]

ANEW = "put the file back, or remove that directory and start it anew with --resume"


def versions() -> dict[str, str]:
    """What a run was made with. The metadata of torch lack the build (+cpu), which torch has."""
    packages = {name: version(name) for name in ("ewc", "ewc-paper", "numpy")}
    return {"python": platform.python_version(), "torch": torch.__version__, **packages}


class RunDirectory:
    """The writing and the reading side of one directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def part(self, name: str) -> "RunDirectory":
        """The directory of one network of this run."""
        return RunDirectory(self.path / "parts" / name)

    def parts(self) -> list["RunDirectory"]:
        return [RunDirectory(file.parent) for file in sorted(self.path.glob("parts/*/config.json"))]

    def start(self, config: dict[str, Any], *, resume: bool = False) -> None:
        """Make the directory and write its config, or check that it is the same run's."""
        config = json.loads(json.dumps(config))
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise RunError(f"{self.path} is not a directory: choose another --out")
        refuse_links(self.path)
        if (self.path / "config.json").exists():
            if not resume:
                raise RunError(f"{self.path} exists: go on with --resume, or choose another --out")
            self._check_same(config)
            return
        if self.path.exists() and any(self.path.iterdir()) and not resume:
            raise RunError(f"{self.path} is not empty and holds no run: choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**config, "versions": versions()}, indent=2) + "\n"
        with writing_to(self.path):
            write_synced(self.path / "config.new", content.encode())
        os.replace(self.path / "config.new", self.path / "config.json")
        sync_directory(self.path)

    def _check_same(self, config: dict[str, Any]) -> None:
        stored = self.config()
        for key in config.keys() | stored.keys() - {"versions"}:
            if config.get(key) != stored.get(key):
                raise RunError(
                    f"{self.path} was started with {key} = {stored.get(key)}, "
                    f"not {config.get(key)}: resume with its own options, or choose another --out"
                )

    def config(self) -> dict[str, Any]:
        """The options the run was started with."""
        file = self.path / "config.json"
        try:
            return parse_record(read_bytes(file), str(file))
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run directory: it has no config.json") from None

    def rows(self) -> list[Row]:
        """The measurements so far; a line that is only half written is left out."""
        if not self._metrics.exists():
            return []
        lines = read_bytes(self._metrics).split(b"\n")[:-1]
        return [
            parse_record(line, f"line {number} of {self._metrics}")
            for number, line in enumerate(lines, start=1)
        ]

    def append(self, row: Row) -> None:
        """Add a measurement, readable at once."""
        with writing_to(self.path), open(self._metrics, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def save(self, state: dict[str, Any], *, finished: bool = False) -> None:
        """Checkpoint a state together with the length of the metrics that belong to it."""
        self._metrics.touch()
        with writing_to(self.path), open(self._metrics, "rb") as file:
            os.fsync(file.fileno())
        metrics = self._metrics.read_bytes()
        checkpoint = {
            "state": state,
            "metrics_bytes": len(metrics),
            "metrics_sha256": hashlib.sha256(metrics).hexdigest(),
            "config_sha256": self._config_sha256(),
            "finished": finished,
        }
        save_checkpoint(self.path, checkpoint)

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint's state; measurements made after it are cut off, to be made again."""
        checkpoint = self._checkpoint()
        if self._metrics.exists():
            os.truncate(self._metrics, checkpoint["metrics_bytes"] if checkpoint else 0)
        return checkpoint["state"] if checkpoint else None

    def finished(self) -> bool:
        checkpoint = self._checkpoint()
        return checkpoint is not None and checkpoint["finished"]

    def check(self) -> None:
        """Raise if the checkpoint is damaged, or the metrics are not those that belong to it."""
        self._checkpoint()

    def _checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, if its config and all of its metrics are still there."""
        checkpoint = load_checkpoint(self.path)
        if checkpoint is None:
            return None
        if checkpoint.get("config_sha256") not in (None, self._config_sha256()):
            raise RunError(f"the checkpoint in {self.path} is of a run with other options: {ANEW}")
        length = checkpoint["metrics_bytes"]
        metrics = read_bytes(self._metrics)[:length] if self._metrics.exists() else b""
        if len(metrics) < length:
            raise RunError(
                f"{self._metrics} has lost measurements: its checkpoint was written after {length} "
                f"bytes, and {len(metrics)} are there: {ANEW}"
            )
        digest = hashlib.sha256(metrics).hexdigest()
        if checkpoint.get("metrics_sha256") not in (None, digest):
            raise RunError(f"{self._metrics} is not what its checkpoint was written with: {ANEW}")
        return checkpoint

    def _config_sha256(self) -> str | None:
        """Of the options alone: a run may go on with other versions."""
        if not (self.path / "config.json").exists():
            return None
        options = {key: value for key, value in self.config().items() if key != "versions"}
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()

    def remove(self, patterns: Iterable[str]) -> None:
        """Remove the files in the directory that match."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                file.unlink()

    @contextmanager
    def locked(self, patience_seconds: float = 10.0) -> Iterator[None]:
        """Hold the directory for this process alone; the lock ends with the process."""
        # Not written to, and never followed if it is a link: a lock has no content.
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with open(descriptor) as file:
            deadline = time.monotonic() + patience_seconds
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RunError(f"{self.path} is being written by another process") from None
                    time.sleep(0.1)
            yield
