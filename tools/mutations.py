"""Seeds faults in the library and says which the tests find: `python tools/mutations.py`.

Each fault is one small change of `src/ewc`, in a copy of the source. The tests that are about it
run on the copy and stop at the first failure. A fault that they do not find shows a gap in them.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import hypothesis  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parents[1]

# By area, the smallest tests that are about its faults.
AREAS: dict[str, tuple[str, ...]] = {
    "rules": ("fisher/per_sample/test_rules.py", "fisher/test_architectures.py"),
    "sums": ("fisher/test_architectures.py", "fisher/test_diagonal.py"),
    "likelihood": ("fisher/test_likelihood.py", "fisher/test_diagonal.py"),
    "checks": ("fisher/per_sample/test_samples.py", "fisher/per_sample/test_graph.py"),
    "model": ("fisher/test_model.py", "fisher/test_batches.py"),
    "wells": ("curvature/test_wells.py", "test_tasks.py", "test_memory.py"),
    "budget": ("test_strength.py",),
    "steps": ("pull/test_step_sizes.py", "pull/test_pull.py"),
    "hooks": ("pull/test_pull.py", "test_memory.py"),
    "proximal": ("pull/test_proximal.py", "pull/test_pull.py"),
    "warnings": ("pull/test_checks.py", "test_diagnostics.py"),
    "storage": ("test_storage.py",),
    "ranks": ("distributed/test_ranks.py", "distributed/test_shards.py"),
    "integrations": (
        *("integrations/test_trainer_memory.py", "integrations/test_peft.py"),
        *("integrations/test_transformers.py", "integrations/test_lightning.py"),
    ),
    "importances": ("importances",),
    "perturbation": ("test_perturbation.py", "fisher/test_overlap.py"),
    "recognition": ("recognition",),
}


class Fault(NamedTuple):
    """One change of one place: `old`, which is there exactly once, becomes `new`."""

    area: str
    file: str
    old: str
    new: str


RULES, SUMS = "fisher/per_sample/rules.py", "fisher/per_sample/sums.py"
CHECKS, LIKELIHOOD = "fisher/per_sample/checks.py", "fisher/likelihood.py"
WELLS, TASKS, STRENGTH = "curvature/wells.py", "curvature/tasks.py", "strength.py"
STEPS, HOOKS, PULL_CHECKS = "step_size.py", "pull/hooks.py", "pull/checks.py"

FAULTS = (
    # the Fisher
    Fault("rules", RULES, "inputs[:, 0].square())", "inputs[:, 0].abs())"),
    Fault("rules", RULES, "alpha=self.scale**2)", "alpha=self.scale)"),
    Fault("rules", RULES, "sums * (rows != self.padding).unsqueeze(-1)", "sums * 1.0"),
    Fault(
        "rules",
        RULES,
        "for pad in reversed(self.options.padding)",
        "for pad in self.options.padding",
    ),
    Fault("rules", RULES, "len(shape) > 3 and 1 in shape", "len(shape) > 9"),
    Fault("sums", SUMS, "self._squared[node].addcmul_(grad, grad) if", "grad.square() if"),
    Fault("sums", SUMS, "whole[: stop - start].zero_()", "whole[: stop - start]"),
    Fault("sums", "fisher/passes.py", 'counted if positions == "mean" else samples', "counted"),
    Fault(
        *("sums", "fisher/passes.py"),
        "buffer[start : start + batch.size].copy_(tensor)",
        "buffer[: batch.size].copy_(tensor)",
    ),
    Fault("likelihood", LIKELIHOOD, "-share / root_after.clamp_min(tiny)", "-share"),
    Fault(
        *("likelihood", LIKELIHOOD),
        "cotangent.scatter_(-1, labels, -cotangent.sum(-1, keepdim=True))",
        "cotangent.scatter_(-1, labels, 1 + logits.softmax(-1).gather(-1, labels).neg())",
    ),
    Fault(
        *("likelihood", LIKELIHOOD),
        "below = cumulative.gather(-1, chosen) - sums.gather(-1, chosen)",
        "below = cumulative.gather(-1, chosen)",
    ),
    Fault(
        "likelihood",
        LIKELIHOOD,
        "return len(output)\n    counted",
        "return output.numel()\n    counted",
    ),
    Fault("checks", CHECKS, "self._within.get(key) != _outlines(full) or number", "number"),
    Fault("checks", CHECKS, "unruled=tuple(unruled)", "unruled=()"),
    Fault("checks", CHECKS, "if key in self._linear:", "if key:"),
    Fault("checks", CHECKS, "rounding**0.5 * size + terms", "rounding**0.5 * size + 0 * terms"),
    Fault("model", "fisher/model.py", "for tensor, copy in copies:", "for tensor, copy in ():"),
    # wells, budgets and the pull
    Fault("wells", WELLS, "a.precision[name] * share * apart", "a.precision[name] * apart"),
    Fault("wells", WELLS, "decay * tensor for", "tensor for"),
    Fault("wells", WELLS, "if error < 8 *", "if error < 1e30 *"),
    Fault(
        "wells", TASKS, "sum(task not in self.left_out for task in self.tasks)", "len(self.tasks)"
    ),
    Fault("wells", TASKS, "self.leave_none_out()\n        pulling", "self\n        pulling"),
    Fault(
        "budget",
        STRENGTH,
        "min(strength_at_budget * expected, RANGE[1])",
        "min(strength_at_budget, RANGE[1])",
    ),
    Fault("budget", STRENGTH, "expected += gain * speed", "expected += 0 * speed"),
    Fault("budget", STRENGTH, "gain = max(gain / 2, GAINS[0])", "gain = max(gain, GAINS[0])"),
    Fault("budget", STRENGTH, "float(above_offset) / 2 / tasks", "float(above_offset) / 2"),
    Fault("steps", STEPS, 'rate * (1 - group["dampening"])', "rate"),
    Fault("steps", STEPS, "squares, eps * first**0.5)", "squares, eps)"),
    Fault("steps", STEPS, "(1 - now) / (1 - product) + momentum", "(1 - now) / (1 - product)"),
    Fault("steps", STEPS, "** 0.5 if length > 5 else 0.0", "** 0.5 if length > 0 else 0.0"),
    Fault("steps", STEPS, "squares, means, means, value=-1.0", "squares, means, means, value=0.0"),
    Fault("steps", STEPS, 'max(float(state["step"]) - 1, 0.0)', 'float(state["step"])'),
    Fault("steps", STEPS, "root * (clip / alpha)", "root / alpha"),
    Fault("steps", STEPS, "[2 * step.rate / float(c)", "[step.rate / float(c)"),
    Fault("steps", STEPS, "[1 + momentum * total for total in sums] if", "sums if"),
    Fault(
        "hooks",
        HOOKS,
        "(skipped := _skipped(optimizer)) is True",
        "(skipped := _skipped(optimizer)) is None",
    ),
    Fault("hooks", HOOKS, "gradient = -gradient", "gradient = +gradient"),
    Fault("hooks", HOOKS, "else loss + state.penalty()", "else loss"),
    Fault("hooks", HOOKS, "a.well is b.well", "True"),
    Fault("proximal", "pull/proximal.py", "if half_pull_precision < STIFF:", "if False:"),
    Fault("proximal", "pull/proximal.py", "torch._foreach_mul_(weights, not_skipped)", "pass"),
    # warnings, files, processes and the rest
    Fault("warnings", PULL_CHECKS, "(change * (1 - weight)).sum()", "(change * weight).sum()"),
    Fault("warnings", PULL_CHECKS, "precisions[name]) > limit", "precisions[name]) > 2 * limit"),
    Fault("warnings", "diagnostics.py", "return dot > SAME", "return dot > -SAME"),
    Fault("warnings", "diagnostics.py", "self._next *= 2", "self._next += 1"),
    Fault("storage", "storage.py", "        _sync(beside)\n", ""),
    Fault("storage", "storage.py", "if _digest(block) != digest:", "if not digest:"),
    Fault("storage", "storage.py", "if at.numel() else {}", "if not at.numel() else {}"),
    Fault(
        "ranks", "distributed/shards.py", "total(tensor) / tensor.numel() if", "tensor.mean() if"
    ),
    Fault("ranks", "distributed/ranks.py", "seed + self.rank", "seed"),
    Fault(
        *("integrations", "integrations/transformers.py"),
        'if stored.metadata.get("run") == name:',
        "if True:",
    ),
    Fault(
        "integrations", "integrations/trainer_memory.py", "self.stop()  # a run", "pass  # a run"
    ),
    Fault(
        "integrations",
        "integrations/lightning.py",
        "module._on_before_batch_transfer(batch)",
        "batch",
    ),
    Fault("integrations", "integrations/peft.py", "base.requires_grad_(required)", "pass"),
    Fault("importances", "importances/synaptic_intelligence.py", "path.clamp_min(0)", "path"),
    Fault("importances", "importances/second_moments.py", "/ correction", ""),
    Fault("perturbation", "perturbation.py", "(f / unit + damping)", "(f + damping)"),
    Fault(
        "recognition",
        "recognition/forget_me_not.py",
        "self._wins == self.config.wins",
        "is_new",
    ),
    Fault(
        "recognition",
        "recognition/screen_recognizer.py",
        "np.maximum(self.frames - 1, 1)",
        "self.frames",
    ),
)


def tried(
    faults: Sequence[Fault], areas: Mapping[str, Sequence[str]], tests: Path
) -> Iterator[tuple[Fault, bool]]:
    """Yield each fault and whether the tests of its area, which pass without it, found it.

    Args:
        faults: the faults to try, one by one.
        areas: by area, tests below `tests`.
        tests: the folder with the tests of the library.
    """
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for area in dict.fromkeys(fault.area for fault in faults):
            if not passes(source, [tests / name for name in areas[area]]):
                raise SystemExit(f"the tests of {area!r} fail without any fault")
        for fault in faults:
            file = source / "ewc" / fault.file
            right = file.read_text()
            if right.count(fault.old) != 1:
                raise SystemExit(f"{fault.file} has {fault.old!r} {right.count(fault.old)} times")
            file.write_text(right.replace(fault.old, fault.new))
            yield fault, not passes(source, [tests / name for name in areas[fault.area]])
            file.write_text(right)


def passes(source: Path, tests: Sequence[Path]) -> bool:
    """Return whether all tests pass with the library in `source`.

    They run in a fork of this process, which has imported what takes long already.
    """
    child = os.fork()
    if child == 0:
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(source)  # of the processes that tests start
        sys.path.insert(0, str(source))
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        os._exit(int(pytest.main([*options, *map(str, tests)])))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):  # 1: a test failed
        raise SystemExit(f"the tests did not run, pytest ended with {code}: {tests}")
    return code == 0


def main() -> None:
    """Try the faults and print which were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=AREAS, default=list(AREAS), help="areas")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests/ewc", help="other tests")
    parser.add_argument("--areas", type=Path, help="JSON with other tests by area")
    parser.add_argument("--list", action="store_true", help="only check that the faults apply")
    parser.add_argument("--nice", type=int, default=10, help="of the tests (default: 10)")
    options = parser.parse_args()
    os.nice(options.nice)
    os.environ["OMP_NUM_THREADS"] = "1"
    areas = {**AREAS, **json.loads(options.areas.read_text())} if options.areas else AREAS
    chosen = [fault for fault in FAULTS if fault.area in options.only]
    if options.list:
        for fault in chosen:
            count = (ROOT / "src/ewc" / fault.file).read_text().count(fault.old)
            print(f"{count}  {fault.area:14}{fault.file}: {fault.old!r}")
        return
    found = 0
    for number, (fault, was_found) in enumerate(tried(chosen, areas, options.tests), 1):
        found += was_found
        result = "found    " if was_found else "NOT FOUND"
        print(f"{number:3}  {result}  {fault.file}: {fault.old!r} -> {fault.new!r}", flush=True)
    print(f"{found} of {len(chosen)} found")


if __name__ == "__main__":
    main()
