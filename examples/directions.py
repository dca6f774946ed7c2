"""Draw a well that is not aligned with the axes, and what a diagonal makes of it.

A linear layer of two weights learns task A, whose two inputs are nearly the same: the sum of the
weights matters a great deal, their difference hardly. Then it learns task B, with a penalty from
the diagonal Fisher of A or from its Kronecker factors, for all strengths λ. Both can be solved in
closed form. The figures are directions-light.svg and directions-dark.svg.
"""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import ewc

LIGHT = {"text": "#222222", "loss": "#c8cce8", "well": "#3f51b5", "path": "#c2410c", "b": "#15803d"}
DARK = {"text": "#e6e6e6", "loss": "#3a4070", "well": "#9fa8ff", "path": "#fb923c", "b": "#4ade80"}

torch.set_num_threads(1)
torch.manual_seed(0)
common, noise = torch.randn(1000, 1), torch.randn(1000, 2)
inputs_a = common + 0.25 * noise  # two inputs that are nearly the same
inputs_b = noise * torch.tensor([1.0, 0.5])
weights_a, weights_b = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.4])

model = torch.nn.Linear(2, 1, bias=False)
model.weight.data = weights_a.unsqueeze(0)
batches = [(inputs_a, inputs_a @ weights_a.unsqueeze(1))]
diagonal = ewc.fisher_diagonal(model, batches, likelihood="gaussian")["weight"].flatten().diag()
factors = ewc.fisher_kronecker(model, batches, likelihood="gaussian").factors["weight"].block()
hessian_b = inputs_b.T @ inputs_b / len(inputs_b)


def quadratic(matrix: Tensor, center: Tensor, weights: Tensor) -> Tensor:
    """Return ½ (θ − θ*)ᵀ M (θ − θ*) of each row θ."""
    distance = weights - center
    return ((distance @ matrix) * distance).sum(-1) / 2


def after_b(precision: Tensor, strength: float) -> Tensor:
    """Return the minimum of the loss of B plus the penalty."""
    total = strength * precision + hessian_b
    return torch.linalg.solve(total, strength * precision @ weights_a + hessian_b @ weights_b)


first, second = torch.linspace(-0.6, 1.25, 70), torch.linspace(-1.0, 0.85, 70)
grid = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1)
strengths = torch.logspace(-4, 4, 161).tolist()
wells = {"diagonal": diagonal, "kronecker": factors}
for name, precision in wells.items():
    for strength in (0.1, 1.0, 10.0):
        end = after_b(precision, strength)
        loss_a = quadratic(factors, weights_a, end)
        loss_b = quadratic(hessian_b, weights_b, end)
        print(f"{name:9} λ = {strength:4}: loss of A {loss_a:.3f}, loss of B {loss_b:.3f}")

for scheme, color in {"light": LIGHT, "dark": DARK}.items():
    plt.rcParams.update({"svg.hashsalt": "ewc", "svg.fonttype": "path", "font.size": 9})
    plt.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor"), color["text"]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.9), layout="constrained")
    for ax, (name, precision) in zip((left, right), wells.items(), strict=True):
        real = quadratic(factors, weights_a, grid)
        ax.contourf(first, second, real, levels=[0, 0.18], colors=color["loss"], alpha=0.6)
        well = quadratic(precision, weights_a, grid)
        levels = [0.02, 0.08, 0.18]
        ax.contour(first, second, well, levels=levels, colors=color["well"], linewidths=1)
        ends = torch.stack([after_b(precision, strength) for strength in strengths])
        ax.plot(*ends.T, color=color["path"], linewidth=2)
        ax.plot(*after_b(precision, 1.0), "o", color=color["path"])
        for point, label in ((weights_a, "A"), (weights_b, "B")):
            ax.plot(*point, "x", color=color["b"] if label == "B" else color["well"])
            ax.annotate(label, point.tolist(), (5, 5), textcoords="offset points")
        ax.set(xlabel="weight 1", ylabel="weight 2", aspect="equal", title=name)
        ax.tick_params(colors=color["text"])
        for spine in ax.spines.values():
            spine.set_visible(False)
    file = f"directions-{scheme}.svg"
    figure.savefig(file, transparent=True, metadata={"Date": None})
    plt.close(figure)
    print("figure:", file)
