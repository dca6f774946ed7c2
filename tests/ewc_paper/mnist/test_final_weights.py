"""Early stopping follows the appendix, and the average is the mean."""

import torch
from torch import nn

from ewc_paper.mnist.final_weights import EarlyStopping, WeightAverage


def set_to(model: nn.Linear, value: float) -> nn.Linear:
    nn.init.constant_(model.weight, value)
    return model


def test_more_than_five_errors_above_the_lowest_end_the_task() -> None:
    stopping, model = EarlyStopping(), nn.Linear(1, 1, bias=False)
    errors = [0.5, 0.3, 0.4, 0.35, 0.3, 0.4, 0.4, 0.4, 0.39, 0.38, 0.31]
    stopped = [stopping.observe(error, set_to(model, i)) for i, error in enumerate(errors)]
    assert stopped == [False] * 10 + [True]
    assert float(stopping.best["weight"]) == 4  # the last of the lowest errors


def test_the_average_is_the_mean_of_the_weights() -> None:
    average, model = WeightAverage(), nn.Linear(3, 2)
    seen = []
    for _ in range(7):
        nn.init.normal_(model.weight)
        seen.append(model.weight.detach().clone().double())
        average.add(model)
    torch.testing.assert_close(
        average.mean["weight"].double(), torch.stack(seen).mean(0), atol=1e-6, rtol=0
    )
