"""The cost of one Fisher, as a multiple of one plain forward and backward pass over the samples."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

from torch import nn

from benchmarks.libraries import MissingLibrary
from benchmarks.models import CASES, Batches, Case, total_cross_entropy
from benchmarks.peers import EMPIRICAL, EXACT, Fisher, FisherFunction, Peer, samples_in
from benchmarks.tables import Row, Table
from benchmarks.timing import best_seconds, seconds
from ewc.fisher import fisher_diagonal
from ewc.fisher.likelihood import Kind

CHECKED_SAMPLES = 4  # the values of other libraries are compared on so many
AGREEMENT = 1e-4  # relative, of the norm; rounding to float32 is far below
SECONDS_A_ROUND = 1.0  # another library gets the batches it does in this time, and at least one
SECONDS_IN_ALL = 10.0  # once it has had this long it sits out the rounds that are left

NOTES = (
    "milliseconds: for all samples; of a way timed on fewer, in proportion.",
    "difference: from ewc of the same kind, of the norm, the largest over the parameters.",
)


@dataclass(frozen=True)
class Way:
    """One way through the samples, and the batches it is timed on; or why it cannot."""

    name: str
    kind: str
    run: Callable[[Batches], object] | None
    batches: Batches
    difference: float | None = None
    remark: str = ""


def tables(*, ours_only: bool) -> Iterator[Table]:
    for case in CASES:
        yield measure(case, ours_only=ours_only)


def measure(case: Case, *, ours_only: bool) -> Table:
    """Time all ways on one model, in turns."""
    model, batches = case.make()
    kinds: list[Kind] = (
        ["sampled", "empirical", "exact"] if case.exact else ["sampled", "empirical"]
    )
    ways = [Way("plain forward+backward", "", partial(plain, model), batches)]
    ways += [Way("ewc", kind, our_fisher(model, kind), batches) for kind in kinds]
    first_other = len(ways)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries warn about their own inner workings
        if not ours_only:
            ways += others(model, batches, "empirical", EMPIRICAL)
            ways += others(model, batches, "exact", EXACT) if case.exact else []
        timed = {str(n): partial(way.run, way.batches) for n, way in enumerate(ways) if way.run}
        limits = {str(n): SECONDS_IN_ALL for n in range(first_other, len(ways))}
        best = best_seconds(timed, case.rounds, limits=limits)
    title = f"Fisher, {case.name}: {case.samples:,} samples in batches of {case.batch_size}"
    rows = [row(way, best.get(str(n)), batches, best["0"]) for n, way in enumerate(ways)]
    return Table(title, rows, () if ours_only else NOTES)


def row(way: Way, time: float | None, batches: Batches, plain_time: float) -> Row:
    samples = None if time is None else samples_in(way.batches)
    scaled = None if time is None else time * samples_in(batches) / samples_in(way.batches)
    return {
        "way": way.name,
        "kind": way.kind,
        "samples": samples,
        "milliseconds": None if scaled is None else 1000 * scaled,
        "multiple": None if scaled is None else scaled / plain_time,
        "difference": way.difference,
        "remark": way.remark,
    }


def plain(model: nn.Module, batches: Batches) -> None:
    """A pass of training without the optimizer's steps: the unit of every number here."""
    for inputs, targets in batches:
        model.zero_grad()
        (total_cross_entropy(model(inputs), targets) / targets.numel()).backward()


def our_fisher(model: nn.Module, kind: Kind) -> FisherFunction:
    # a sequence counts as one sample, as it does in the other libraries
    return lambda batches: fisher_diagonal(model, batches, kind=kind, positions="sum")


def others(
    model: nn.Module, batches: Batches, kind: Kind, peers: Mapping[str, Peer]
) -> Iterator[Way]:
    """Other libraries, each checked against our values before it is timed."""
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
            yield Way(name, kind, None, batches, remark=f"cannot: {reason}")
        else:
            remark = "" if difference < AGREEMENT else f"wrong values for {parameter}"
            yield Way(name, kind, fisher, affordable(fisher, batches), difference, remark)


def affordable(fisher: FisherFunction, batches: Batches) -> Batches:
    """The batches that fit into a round."""
    first = seconds(lambda: fisher(batches[:1]))
    return batches[: max(1, int(SECONDS_A_ROUND / first))]


def largest_difference(found: Fisher, expected: Fisher) -> tuple[str, float]:
    """The parameter in which two Fishers differ most, and how much relative to its norm."""
    differences = {
        name: float((found[name] - values).norm() / values.norm())
        for name, values in expected.items()
    }
    return max(differences.items(), key=lambda item: item[1])
