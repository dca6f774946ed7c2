"""Peak extra memory of one Fisher of the paper's DQN, with a batch of 1,024.

Linux records the peak memory of a process, so each measurement has a process of its own:
`python -m benchmarks.peak KIND` prints how many bytes one Fisher used at its peak, on top of what
was in use before: the model, its batch, and everything that a first small Fisher loads.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from benchmarks.fisher import our_fisher, plain_pass
from benchmarks.models import dqn, dqn_batch
from benchmarks.tables import ResultRow, ResultTable
from benchmarks.timing import one_thread
from ewc.fisher.likelihood import Kind

BATCH_SIZE = 1024
PLAIN = "plain"


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    rows: list[ResultRow] = [
        {"method": "plain forward+backward", "megabytes": in_a_process(PLAIN) / 1e6}
    ]
    for kind in get_args(Kind):
        rows.append({"method": f"ewc {kind}", "megabytes": in_a_process(kind) / 1e6})
    title = f"Peak extra memory, the paper's DQN, one batch of {BATCH_SIZE:,}"
    yield ResultTable(title, rows, ["megabytes: on top of the model and its batch."])


def in_a_process(kind: str) -> int:
    """Measure `extra_bytes` in a new process."""
    command = [sys.executable, "-m", "benchmarks.peak", kind]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def extra_bytes(kind: Any) -> int:
    """Return the peak extra memory of one Fisher, or of a plain pass; once per process."""
    model, batch = dqn(), dqn_batch(BATCH_SIZE)
    few = (batch[0][:2], batch[1][:2])
    run = (lambda batches: plain_pass(model, batches)) if kind == PLAIN else our_fisher(model, kind)
    run([few])
    before = status_bytes("VmRSS")
    run([batch])
    return status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status. (`getrusage` would include the peak of the parent.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    one_thread()
    print(extra_bytes(sys.argv[1]))
