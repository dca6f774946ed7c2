"""Learn MNIST, then MNIST with shuffled pixels, and still know the first: the README's example."""

import torch
from torch.nn.functional import cross_entropy

import ewc
from ewc_paper.mnist.data import load

mnist, shuffle = load(), torch.randperm(784)
model = torch.nn.Sequential(torch.nn.Linear(784, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
memory = ewc.EWC(model, strength=100.0)
memory.attach(optimizer)  # from now on every optimizer.step() respects the memory

for task, pixels in {"A": torch.arange(784), "B": shuffle}.items():
    images = mnist.train.images[:, pixels]
    for x, y in zip(images.split(64), mnist.train.labels.split(64), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    memory.consolidate(images[:10_000].split(500), task=task)

for task, pixels in {"A": torch.arange(784), "B": shuffle}.items():
    right = model(mnist.test.images[:, pixels]).argmax(1) == mnist.test.labels
    print(f"task {task}: accuracy {right.float().mean():.1%} after both tasks")
