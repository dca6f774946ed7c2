"""The Fisher's peak extra memory on the paper's DQN with a batch of 1,024.

A process remembers its own high-water mark, so each measurement is a process of its own:
`python -m benchmarks.peak KIND` prints the bytes by which one Fisher raised the mark over what was
in use before it: the model, its batch, and all that a first small Fisher loads.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from benchmarks.fisher import our_fisher, plain
from benchmarks.models import dqn, dqn_batch
from benchmarks.tables import Row, Table
from benchmarks.timing import one_thread
from ewc.fisher.likelihood import Kind

BATCH_SIZE = 1024
PLAIN = "plain"


def tables(*, ours_only: bool) -> Iterator[Table]:
    rows: list[Row] = [{"way": "plain forward+backward", "megabytes": in_a_process(PLAIN) / 1e6}]
    for kind in get_args(Kind):
        rows.append({"way": f"ewc {kind}", "megabytes": in_a_process(kind) / 1e6})
    title = f"Peak extra memory, the paper's DQN, one batch of {BATCH_SIZE:,}"
    yield Table(title, rows, ["over the model and its batch"])


def in_a_process(kind: str) -> int:
    command = [sys.executable, "-m", "benchmarks.peak", kind]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def extra_bytes(kind: Any) -> int:
    model, batch = dqn(), dqn_batch(BATCH_SIZE)
    few = (batch[0][:2], batch[1][:2])
    run = (lambda batches: plain(model, batches)) if kind == PLAIN else our_fisher(model, kind)
    run([few])
    before = status_bytes("VmRSS")
    run([batch])
    return status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    """What Linux says of this process. `getrusage` would not do: a child has its parent's mark."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    one_thread()
    print(extra_bytes(sys.argv[1]))
