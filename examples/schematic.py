"""Draw the paper's first figure from a real problem of two parameters, into schematic.png."""

from pathlib import Path

import torch

from ewc_paper.experiments.schematic.figure import plot
from ewc_paper.experiments.schematic.run import Schematic, TwoParameters
from ewc_paper.figures.style import axes, save

torch.set_num_threads(1)

landscape, *ways = TwoParameters(Schematic()).run()
ax = axes(5.0, 4.4)
plot(ax, landscape, {way["way"]: way for way in ways})
for way in ways:
    print(f"{way['way']:4} loss of A {way['loss_a']:.3f}, loss of B {way['loss_b']:.3f}")
print("figure:", save(ax, Path("schematic.png")))
