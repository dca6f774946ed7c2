"""The cost of one Fisher, as a multiple of one plain forward and backward pass over the samples.

And its peak extra memory, for the paper's DQN with a batch of 1,024. Linux records the peak memory
of a process, so each measurement has a process of its own: `python -m benchmarks.speed.fisher KIND`
prints how many bytes one Fisher used at its peak, on top of what was in use before: the model, its
batch, and everything that a first small Fisher loads.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from torch import nn

from benchmarks.measure import (
    MissingLibrary,
    ResultRow,
    ResultTable,
    best_seconds,
    bytes_in_a_process,
    one_thread,
    seconds,
    status_bytes,
)
from benchmarks.speed.models import CASES, Batches, Case, dqn, dqn_batch, total_cross_entropy
from benchmarks.speed.peers import EMPIRICAL, EXACT, Fisher, FisherFunction, Peer, samples_in
from ewc.fisher import fisher_diagonal
from ewc.fisher.likelihood import Kind

CHECKED_SAMPLES = 4  # on which the values of other libraries are compared with ours
MAX_DIFFERENCE = 1e-4  # relative to the norm; rounding to float32 is far below
SECONDS_PER_ROUND = 1.0  # another library is timed on the batches that fit into this, at least one
MEMORY_BATCH_SIZE = 1024
PLAIN = "plain"
MAX_SECONDS = 10.0  # after which another library is left out of the remaining rounds

NOTES = (
    "milliseconds: for all samples; scaled up where fewer were timed.",
    "difference: from ewc of the same kind, relative to its norm; the largest of all parameters.",
)


@dataclass(frozen=True)
class Candidate:
    """Something to time.

    Args:
        name: name of the library.
        kind: kind of Fisher; empty for a plain pass.
        run: what to time, a function of the batches; None if the library fails.
        batches: what it is timed on.
        difference: how far its values are from ours.
        remark: what is wrong with it, if anything.
    """

    name: str
    kind: str
    run: Callable[[Batches], object] | None
    batches: Batches
    difference: float | None = None
    remark: str = ""


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    """Yield one table per case."""
    for case in CASES:
        yield measure(case, ours_only=ours_only)


def measure(case: Case, *, ours_only: bool) -> ResultTable:
    """Time all candidates on one model, in turns."""
    model, batches = case.make()
    kinds: list[Kind] = (
        ["sampled", "empirical", "exact"] if case.exact else ["sampled", "empirical"]
    )
    candidates = [Candidate("plain forward+backward", "", partial(plain_pass, model), batches)]
    candidates += [Candidate("ewc", kind, our_fisher(model, kind), batches) for kind in kinds]
    first_other = len(candidates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries warn about their own inner workings
        if not ours_only:
            candidates += other_libraries(model, batches, "empirical", EMPIRICAL)
            if case.exact:
                candidates += other_libraries(model, batches, "exact", EXACT)
        workloads = {
            str(n): partial(own.run, own.batches) for n, own in enumerate(candidates) if own.run
        }
        limits = {str(n): MAX_SECONDS for n in range(first_other, len(candidates))}
        best = best_seconds(workloads, case.rounds, limits=limits)
    title = f"Fisher, {case.name}: {case.samples:,} samples in batches of {case.batch_size}"
    rows = [row(own, best.get(str(n)), batches, best["0"]) for n, own in enumerate(candidates)]
    return ResultTable(title, rows, () if ours_only else NOTES)


def row(candidate: Candidate, time: float | None, batches: Batches, plain_time: float) -> ResultRow:
    """Return a row of the table.

    Args:
        candidate: what was timed.
        time: its seconds on its own batches; None if it failed.
        batches: all batches.
        plain_time: seconds of a plain pass over all batches.
    """
    samples = None if time is None else samples_in(candidate.batches)
    scaled = None if time is None else time * samples_in(batches) / samples_in(candidate.batches)
    return {
        "method": candidate.name,
        "kind": candidate.kind,
        "samples": samples,
        "milliseconds": None if scaled is None else 1000 * scaled,
        "multiple": None if scaled is None else scaled / plain_time,
        "difference": candidate.difference,
        "remark": candidate.remark,
    }


def plain_pass(model: nn.Module, batches: Batches) -> None:
    """Train without the optimizer's steps: the unit of all multiples here."""
    for inputs, targets in batches:
        model.zero_grad()
        (total_cross_entropy(model(inputs), targets) / targets.numel()).backward()


def our_fisher(model: nn.Module, kind: Kind) -> FisherFunction:
    """Return our Fisher; a sequence counts as one sample, as in the other libraries."""
    return lambda batches: fisher_diagonal(model, batches, kind=kind, positions="sum")


def other_libraries(
    model: nn.Module, batches: Batches, kind: Kind, peers: Mapping[str, Peer]
) -> Iterator[Candidate]:
    """Yield the other libraries, after comparing their values with ours.

    Args:
        model: the model; each library gets a copy.
        batches: all batches.
        kind: kind of Fisher that the libraries compute.
        peers: the libraries, by name.
    """
    inputs, targets = batches[0]
    few = [(inputs[:CHECKED_SAMPLES], targets[:CHECKED_SAMPLES])]
    expected = our_fisher(model, kind)(few)
    for name, peer in peers.items():
        try:
            fisher = peer(deepcopy(model))
            parameter, difference = largest_difference(fisher(few), expected)
        except MissingLibrary:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Candidate(name, kind, None, batches, remark=f"fails: {reason}")
        else:
            remark = "" if difference < MAX_DIFFERENCE else f"wrong values for {parameter}"
            yield Candidate(
                name, kind, fisher, batches_per_round(fisher, batches), difference, remark
            )


def batches_per_round(fisher: FisherFunction, batches: Batches) -> Batches:
    """Return the first batches, as many as can be timed in SECONDS_PER_ROUND."""
    first = seconds(lambda: fisher(batches[:1]))
    return batches[: max(1, int(SECONDS_PER_ROUND / first))]


def largest_difference(found: Fisher, expected: Fisher) -> tuple[str, float]:
    """Return the parameter in which two Fishers differ most, and by how much of its norm."""
    differences = {
        name: float((found[name] - values).norm() / values.norm())
        for name, values in expected.items()
    }
    return max(differences.items(), key=lambda item: item[1])


def memory_tables(*, ours_only: bool) -> Iterator[ResultTable]:
    """Yield the table of the peak extra memory, measured in a process per row."""
    rows: list[ResultRow] = []
    for what in (PLAIN, *get_args(Kind)):
        name = "plain forward+backward" if what == PLAIN else f"ewc {what}"
        peak = bytes_in_a_process("benchmarks.speed.fisher", what)
        rows.append({"method": name, "megabytes": peak / 1e6})
    title = f"Peak extra memory, the paper's DQN, one batch of {MEMORY_BATCH_SIZE:,}"
    yield ResultTable(title, rows, ["megabytes: on top of the model and its batch."])


def extra_bytes(kind: Any) -> int:
    """Return the peak extra memory of one Fisher, or of a plain pass; once per process."""
    model, batch = dqn(), dqn_batch(MEMORY_BATCH_SIZE)
    few = (batch[0][:2], batch[1][:2])
    run = (lambda batches: plain_pass(model, batches)) if kind == PLAIN else our_fisher(model, kind)
    run([few])
    before = status_bytes("VmRSS")
    run([batch])
    return status_bytes("VmHWM") - before


if __name__ == "__main__":
    one_thread()
    print(extra_bytes(sys.argv[1]))
