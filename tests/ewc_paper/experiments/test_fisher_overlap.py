"""The overlap is that of the two tasks' Fishers at the final weights, layer by layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import (
    DIVERGED,
    OPTIONS,
    as_text,
    assert_markers_are_whole,
    assert_only_diverged,
    end,
    make_fisher_overlap,
    write_data,
    write_run,
)

from ewc_paper.experiments import fisher_overlap
from ewc_paper.experiments.fisher_overlap import FisherOverlap
from ewc_paper.experiments.view import draw


def test_the_overlap_by_layer_equals_its_definition(tmp_path: Path) -> None:
    options = {**OPTIONS, "layers": 2, "data": str(write_data(tmp_path)), "squares": (26,)}
    (part,) = FisherOverlap.preset("quick", **options).parts()
    learner = part.make(part.config)
    *_, row = learner.run()
    assert row is not None
    squares: list[list[torch.Tensor]] = []
    for task in range(2):
        images = learner.tasks.permuted(learner.tasks.data.train[:40], task).images
        total = [torch.zeros_like(w, dtype=torch.float64) for w in learner.model.parameters()]
        for image in images:
            logs = learner.model(image[None]).log_softmax(1)[0]
            for log in logs:
                grads = torch.autograd.grad(
                    log, list(learner.model.parameters()), retain_graph=True
                )
                for mean, grad in zip(total, grads, strict=True):
                    mean += log.exp().item() * grad.double() ** 2 / 40
        squares.append(total)
    for layer, overlap in enumerate(row["overlap"]):
        f1, f2 = (torch.cat([f[2 * layer].flatten(), f[2 * layer + 1]]) for f in squares)
        distance = ((f1 / f1.sum()).sqrt() - (f2 / f2.sum()).sqrt()).square().sum() / 2
        torch.testing.assert_close(overlap, 1 - distance.item(), atol=1e-5, rtol=0)
    assert len(row["overlap"]) == 3


def test_a_network_that_diverged_has_no_overlap(tmp_path: Path) -> None:
    changes = {"how": "gradient", "strength": 1e12, "squares": (26,)}
    options = {**OPTIONS, "data": str(write_data(tmp_path)), **changes}
    (part,) = FisherOverlap.preset("quick", **options).parts()
    *_, row = part.make(part.config).run()
    assert row is not None
    assert row["diverged"]
    assert "overlap" not in row


def test_the_table_has_the_overlap_of_each_layer(tmp_path: Path) -> None:
    shown = as_text(fisher_overlap.table(make_fisher_overlap(tmp_path)))
    assert all(value in shown for value in ("26×26", "25.00", "50.00"))


def test_a_marker_at_one_is_whole(tmp_path: Path, drawn: Any) -> None:
    parts = {"8": ({"square": 8}, [{"overlap": [1.0, 1.0]}])}
    draw(fisher_overlap, write_run(tmp_path, {"experiment": "fisher-overlap"}, parts))
    (ax,) = drawn.panels["fisher-overlap"]
    assert_markers_are_whole(ax)


def test_squares_are_in_the_order_given(tmp_path: Path, drawn: Any) -> None:
    parts = {f"{s}": ({"square": s}, [{"overlap": [0.5]}]) for s in (8, 26)}
    config = {"experiment": "fisher-overlap", "squares": [26, 8]}
    draw(fisher_overlap, write_run(tmp_path, config, parts))
    assert drawn.legends["fisher-overlap"] == ["26×26 pixels permuted", "8×8 pixels permuted"]


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path) -> None:
    parts = {"8": ({"square": 8, "recipe": {"layers": 1}}, [end(0, 0.098, **DIVERGED)])}
    run = write_run(tmp_path, {"experiment": "fisher-overlap"}, parts)
    assert_only_diverged(fisher_overlap.table(run), ["diverged"] * 2)
    assert len(draw(fisher_overlap, run)) == 1
