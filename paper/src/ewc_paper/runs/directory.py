"""A run directory: everything that is needed to resume a run, or to draw it years later.

config.json     all options, with the seed, the versions and a checksum; written once
metrics.jsonl   one JSON object per line, one line per measurement; only ever appended to
checkpoint.safetensors, previous.safetensors
SHA256SUMS      checksums of the files above, as soon as the part, or the run, is finished
parts/<name>/   one run directory per part, for a run of several parts
figures/
report.html     the page of the run, which shows all of it
"""

import fcntl
import hashlib
import json
import os
import platform
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ewc_paper.errors import Damaged, OtherOptions, RunError
from ewc_paper.runs.checkpoint import CURRENT, load_checkpoint, save_checkpoint, says_finished
from ewc_paper.runs.checksums import (
    SUMS,
    check_sums,
    record_sha256,
    seal_part,
    sums_of,
    with_checksum,
    without_checksum,
)
from ewc_paper.runs.files import (
    parse_record,
    read_bytes,
    refuse_links,
    replace_file,
    sync_directory,
    write_synced,
    writing_to,
)
from ewc_paper.terminal import shown

MetricsRow = dict[str, Any]  # one line of metrics.jsonl

START_AGAIN = "restore the file, or remove that directory and start it again with --resume"


@cache
def versions() -> dict[str, str]:
    """Return the versions that may affect results; torch's includes its build (+cpu)."""
    packages = {name: version(name) for name in ("ewc", "ewc-paper", "numpy")}
    return {"python": platform.python_version(), "torch": torch.__version__, **packages}


class RunDirectory:
    """Reads and writes one run directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def figures(self) -> Path:
        """Directory for the figures; it may not exist yet."""
        return self.path / "figures"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def part(self, name: str) -> "RunDirectory":
        """Return the run directory of one part of this run."""
        return RunDirectory(self.path / "parts" / name)

    def parts(self) -> list["RunDirectory"]:
        """Return the run directories of all parts that have started, sorted by name."""
        return [RunDirectory(file.parent) for file in sorted(self.path.glob("parts/*/config.json"))]

    def start(self, config: dict[str, Any], *, resume: bool = False) -> None:
        """Create the directory and write its config, or check that it is the one being resumed."""
        config = json.loads(json.dumps(config))
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise RunError(f"{self.path} is not a directory: choose another --out")
        refuse_links(self.path)
        if os.path.lexists(self.path / "config.json"):
            if not resume and not (self.path / "config.json").is_file():
                raise RunError(f"{self.path} holds a damaged run: choose another --out")
            if not resume:
                raise RunError(
                    f"{self.path} exists: continue it with --resume, or choose another --out"
                )
            self._check_same(config)
            return
        if self.path.exists() and any(self.path.iterdir()) and not resume:
            raise RunError(f"{self.path} is not empty and holds no run: choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        stored = with_checksum({**config, "versions": versions()})
        content = json.dumps(stored, indent=2) + "\n"
        with writing_to(self.path):
            write_synced(self.path / "config.new", content.encode())
        os.replace(self.path / "config.new", self.path / "config.json")
        sync_directory(self.path)

    def _check_same(self, config: dict[str, Any]) -> None:
        stored = self.config()
        for key in config.keys() | stored.keys() - {"versions"}:
            if config.get(key) != stored.get(key):
                raise OtherOptions(
                    f"{self.path} was started with {key} = {shown(stored.get(key))}, not "
                    f"{shown(config.get(key))}: resume with its own options, or choose another "
                    "--out"
                )

    def config(self) -> dict[str, Any]:
        """Return the options that the run was started with, and its versions."""
        file = self.path / "config.json"
        try:
            return without_checksum(parse_record(read_bytes(file), str(file)), str(file))
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run directory: it has no config.json") from None

    @property
    def begun(self) -> bool:
        """Whether it holds any of the files that a run leaves, be it damaged or not."""
        names = ("config.json", "metrics.jsonl", CURRENT, SUMS)
        return any(os.path.lexists(self.path / name) for name in names)

    def rows(self) -> list[MetricsRow]:
        """Return all measurements so far, without a last line that is only partly written."""
        if not self._metrics.exists():
            return []
        lines = read_bytes(self._metrics).split(b"\n")[:-1]
        place = str(self._metrics)  # made once: there may be very many lines
        return [
            parse_record(line, f"line {number} of {place}")
            for number, line in enumerate(lines, start=1)
        ]

    def append(self, row: MetricsRow) -> None:
        """Add a measurement; other processes can read it immediately."""
        with writing_to(self.path), open(self._metrics, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def save(self, state: dict[str, Any], *, finished: bool = False) -> None:
        """Write a checkpoint of a state and of how many metrics had been written by then."""
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
        """Return the state of the last checkpoint; measurements made after it are removed."""
        checkpoint = self._checkpoint()
        if self._metrics.exists():
            os.truncate(self._metrics, checkpoint["metrics_bytes"] if checkpoint else 0)
        return checkpoint["state"] if checkpoint else None

    def finished(self) -> bool:
        """Whether the run has come to its end; raises Damaged if its files say two things."""
        sealed, checkpoint = self._check_sums(), self._checkpoint()
        return sealed or (checkpoint is not None and checkpoint["finished"])

    def says_finished(self) -> bool:
        """Whether the run says that it has come to its end; its files are not checked."""
        return says_finished(self.path) or bool(sums_of(self.path))

    def check(self) -> None:
        """Raise RunError if a file is damaged, lost, or does not belong to the others."""
        self._check_sums()  # first: it knows of a config.json that is lost
        self.config()
        self._checkpoint()

    def seal(self) -> None:
        """Write the checksums of this part, which is finished, unless they are there."""
        if sums_of(self.path) is None:
            seal_part(self.path)

    def _check_sums(self) -> bool:
        """Check the files against their checksums; return whether there are any."""
        sums = sums_of(self.path)
        check_sums(self.path, sums or {})
        return sums is not None

    def _checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint after checking that it fits the config and the metrics."""
        checkpoint = load_checkpoint(self.path)
        if checkpoint is None:
            return None
        if checkpoint.get("config_sha256") not in (None, self._config_sha256()):
            raise Damaged(
                f"the checkpoint in {self.path} belongs to a run with other options: {START_AGAIN}"
            )
        length = checkpoint["metrics_bytes"]
        metrics = read_bytes(self._metrics)[:length] if self._metrics.exists() else b""
        if len(metrics) < length:
            raise Damaged(
                f"{self._metrics} has lost measurements: its checkpoint was written after {length} "
                f"bytes, and {len(metrics)} are there: {START_AGAIN}"
            )
        digest = hashlib.sha256(metrics).hexdigest()
        if checkpoint.get("metrics_sha256") not in (None, digest):
            raise Damaged(
                f"{self._metrics} was changed after its checkpoint was written: {START_AGAIN}"
            )
        if checkpoint["finished"] and length < self._metrics_bytes():
            raise Damaged(
                f"{self._metrics} has rows that were added after it was finished: {START_AGAIN}"
            )
        return checkpoint

    def _metrics_bytes(self) -> int:
        return self._metrics.stat().st_size if self._metrics.exists() else 0

    def _config_sha256(self) -> str | None:
        """Checksum of the options; without the versions, as others may be used to resume."""
        if not (self.path / "config.json").exists():
            return None
        options = {key: value for key, value in self.config().items() if key != "versions"}
        return record_sha256(options)

    def write_text(self, name: str, text: str) -> None:
        """Create or replace a small file of the directory, completely or not at all."""
        replace_file(self.path / name, text.encode())

    def remove(self, patterns: Iterable[str]) -> None:
        """Remove the files in the directory that match one of the glob patterns."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                file.unlink()

    def is_being_written(self) -> bool:
        """Whether another process holds the lock of the directory."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False  # no run was ever going on here
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            return False  # a directory or a pipe of that name on some systems
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def locked(self, patience_seconds: float = 10.0) -> Iterator[None]:
        """Keep other processes from writing to the directory; the lock ends with the process."""
        # The lock file has no content; if it is a symbolic link, it is not followed.
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
