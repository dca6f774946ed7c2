"""Random models for the Kronecker factors: the programs of `models`, against the slow factors."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from support.fisher import EXACT, batch_of_one_fisher, the_target
from support.kronecker import SlowLayer, assert_equal_factors, slow_factors
from torch import Tensor

import ewc

from .model_layers import MIXING
from .models import Mismatch, Model, Program, data, make_program, shrink

TOLERANCE = 1e-8
Fisher = Callable[..., ewc.KroneckerFisher]


def compare(program: Program, fisher: Fisher = ewc.fisher_kronecker) -> bool:
    """Raise `Mismatch` if the factors, or the diagonal of the rest, are not the loop's.

    Returns False if the Fisher was refused, because a later batch uses a weight in another way, or
    if the factors are not determined, because a rounding changes them.
    """
    batches = data(program)
    model = Model(program).double().eval()
    labels = the_target if program.kind == "empirical" else EXACT[program.likelihood]
    slow: dict[str, SlowLayer] = {}
    total: dict[str, Tensor] = {}
    positions = 0
    for inputs, targets in batches:
        count = targets.numel() if program.likelihood == "categorical" else len(targets)
        copies = tuple(tensor.clone() for tensor in inputs)
        slow_factors(model, copies, targets, labels, program.likelihood, slow)
        one = batch_of_one_fisher(model, copies, targets, labels, program.likelihood)
        total = {name: total.get(name, 0) + count * value for name, value in one.items()}
        positions += count
    mixing = any(operation.name in (*MIXING, "written") for operation in program.operations)
    with warnings.catch_warnings(record=mixing):
        warnings.simplefilter("always" if mixing else "error", ewc.EWCWarning)
        try:
            found = fisher(model, batches, kind=program.kind, likelihood=program.likelihood)
        except ValueError as error:
            if len(batches) > 1 and re.search("(as|than) in the first batch", str(error)):
                return False
            raise Mismatch(f"{type(error).__name__}: {error}\n{program}") from error
        except Exception as error:
            raise Mismatch(f"{type(error).__name__}: {error}\n{program}") from error
    try:
        # Which rows an expert gets may depend on the other samples although the output does not,
        # if these rows do not matter to it: they have no gradient, but are inputs.
        assert_equal_factors(found, slow, positions, TOLERANCE, only_outputs=mixing)
    except AssertionError as error:
        if _has_ties(program, model, slow):
            return False
        raise Mismatch(f"{error}\n{program}") from error
    in_factors = {*found.factors, *(own.bias for own in found.factors.values())} - {None}
    if in_factors | found.diagonal.keys() != total.keys() or in_factors & found.diagonal.keys():
        raise Mismatch(f"parameters are missing, or there twice\n{program}")
    largest = max(float(value.max()) for value in total.values()) / positions
    for name, actual in found.diagonal.items():
        expected = total[name] / positions
        error = float((actual - expected).abs().max())
        scale = max(float(expected.max()), 1e-6 * largest)
        if not error <= TOLERANCE * scale:
            raise Mismatch(f"{name} is off by {error / scale:.1e}\n{program}")
    return True


def _has_ties(program: Program, model: Model, slow: dict[str, SlowLayer]) -> bool:
    """Whether the slow factors jump if the weights move by a rounding or so.

    Where a maximum over positions is a tie, the gradient may go to either. The gradient of a weight
    is the same if its inputs are, but Σ g gᵀ is not.
    """
    labels = the_target if program.kind == "empirical" else EXACT[program.likelihood]
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in moved.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.mul_(1 + 1e-13 * noise)
        others: dict[str, SlowLayer] = {}
        for inputs, targets in data(program):
            slow_factors(moved, inputs, targets, labels, program.likelihood, others)
        for name, own in others.items():
            apart = float((own.outputs - slow[name].outputs).abs().max())
            if apart > TOLERANCE * float(slow[name].outputs.abs().max()):
                return True
    return False


def run(seed: int, fisher: Fisher = ewc.fisher_kronecker) -> bool:
    """Check the program of a seed; raise `Mismatch` with the smallest program that still fails."""
    program = make_program(seed)

    def compare_with(smaller: Program, _: Any) -> None:
        compare(smaller, fisher)

    try:
        return compare(program, fisher)
    except Mismatch:
        raise shrink(program, fisher, compare_with) from None
