"""Draw the paper's first figure from a real problem of two parameters, into schematic.png."""

from pathlib import Path

import torch

from ewc_paper.experiments.schematic import Schematic, TwoParameters, figure
from ewc_paper.figures.plot import draw_figures

torch.set_num_threads(1)

landscape, *ways = TwoParameters(Schematic()).run()
for way in ways:
    print(f"{way['way']:4} loss of A {way['loss_a']:.3f}, loss of B {way['loss_b']:.3f}")
shown = figure(landscape, {way["way"]: way for way in ways})
print("figure:", *draw_figures([shown], Path()))
