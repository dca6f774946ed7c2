"""Specs: lists, ranges and log scales give values that fit, and everything else is refused."""

from dataclasses import fields

import numpy as np
import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.options import check_options
from ewc_paper.sweeps.spec import Listed, Range, parse_spec, parse_specs


def draws(text: str, count: int = 2000) -> np.ndarray:
    random, spec = np.random.default_rng(0), parse_spec(text, ManyTasks)
    return np.array([spec.draw(random) for _ in range(count)])


def test_a_list_gives_its_values() -> None:
    spec = parse_spec("lr=0.01,0.1,1", ManyTasks)
    assert isinstance(spec, Listed)
    assert spec.values == (0.01, 0.1, 1.0)
    assert set(draws("width=8,16")) == {8, 16}


def test_values_of_an_option_with_several_are_joined() -> None:
    spec = parse_spec("methods=ewc+sgd,ewc", ManyTasks)
    assert isinstance(spec, Listed)
    assert spec.values == (("ewc", "sgd"), ("ewc",))


def test_a_range_is_drawn_evenly() -> None:
    drawn = draws("lr=0.2..0.6")
    assert 0.2 <= drawn.min() < 0.21
    assert 0.59 < drawn.max() <= 0.6
    assert np.mean(drawn) == pytest.approx(0.4, abs=0.01)


def test_whole_numbers_are_drawn_with_both_ends() -> None:
    drawn = draws("width=3..5")
    assert drawn.dtype == np.int64
    assert [np.mean(drawn == width) for width in (3, 4, 5)] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_log_scale_is_drawn_evenly_on_it() -> None:
    drawn = draws("lr=log:1e-5..1e-1")
    assert drawn.min() >= 1e-5
    assert drawn.max() <= 1e-1
    in_decades = np.histogram(np.log10(drawn), bins=[-5, -4, -3, -2, -1])[0] / len(drawn)
    assert in_decades == pytest.approx([0.25] * 4, abs=0.04)
    widths = draws("width=log:1..1000")
    assert widths.dtype == np.int64
    assert np.mean(widths <= 31) == pytest.approx(0.5, abs=0.04)


def test_every_value_drawn_fits_its_option() -> None:
    for text in ("lr=1e-12..1e3", "width=1..3", "momentum=0..0.5", "floor=0,0.02"):
        spec = parse_spec(text, ManyTasks)
        for seed in range(50):
            check_options(ManyTasks, {spec.field: spec.draw(np.random.default_rng(seed))})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr", "--over must be FIELD=SPEC, got 'lr'"),
        ("lr=", "--over must be FIELD=SPEC"),
        ("rate=1,2", "there is no option rate; there are .*lr"),
        ("seed=1,2", "cannot go over seed: --seeds N repeats"),
        ("seeds=1,2", "cannot go over seeds"),
        ("lr=a,b", "--over lr: expected float, got 'a'; write a,b,c for a list"),
        ("lr=1..x", "expected float, got 'x'"),
        ("lr=0.1..0.1", "a range must rise, got 0.1 to 0.1"),
        ("lr=1..0.1", "a range must rise"),
        ("lr=0..nan", "a range must rise"),
        ("lr=0.1..inf", "--lr must be at most 1000"),
        ("strength=log:0..10", "a log scale begins above 0, got 0"),
        ("width=1.5..3", "expected int, got '1.5'"),
        ("width=0..30", "--width must be at least 1, got 0"),
        ("lr=0.1,0.1", "values must differ"),
        ("lr=0.1,", "expected float, got ''"),
        ("methods=ewc..sgd", "only numbers have ranges"),
        ("methods=ewc+magic", "--methods must be one of .* got magic"),
        ("data=a..b", "only numbers have ranges"),
        ("log:lr=1..2", "there is no option log:lr"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(RunError, match=said) as error:
        parse_spec(text, ManyTasks)
    assert "\n" not in str(error.value)


def test_a_field_is_gone_over_once() -> None:
    with pytest.raises(RunError, match="--over names lr twice"):
        parse_specs(["lr=1,2", "lr=3,4"], ManyTasks)


def test_any_option_but_the_seeds_can_be_gone_over() -> None:
    numbers = [one for one in fields(ManyTasks) if type(one.default) in (int, float)]
    for one in numbers:
        if one.name not in ("seed", "seeds"):
            low, high = one.metadata["low"], one.metadata["low"] + 1
            if one.metadata["high"] is None or high <= one.metadata["high"]:
                spec = parse_spec(f"{one.name}={low}..{high}", ManyTasks)
                assert isinstance(spec, Range)
                assert spec.whole == isinstance(one.default, int)
