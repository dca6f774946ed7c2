"""The overlap is that of the two tasks' Fishers at the final weights, layer by layer."""

from pathlib import Path

import torch
from support.tiny import OPTIONS, write_data

from ewc_paper.experiments.fisher_overlap.run import FisherOverlap


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
