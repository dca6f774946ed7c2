"""Training throughput, compared with a plain `DataLoader` loop and avalanche's `Naive`.

All train the same 2x400 network with SGD and momentum, for one pass over the same images. A profile
shows how much of our time is spent in matrix products.
"""

import logging
import warnings
from collections.abc import Callable, Iterator

from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import ResultRow, ResultTable, best_seconds, library, ratios
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.mnist.data import PermutedTasks, Split, load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.mnist.network import mlp

SAMPLES, BATCH_SIZE, LR, ROUNDS = 20_000, 128, 0.05, 5
MATRIX_PRODUCTS = ("aten::addmm", "aten::mm")


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    tasks = PermutedTasks(load(train_samples=SAMPLES, test_samples=100), seed=0)
    data = tasks.permuted(tasks.data.train, 0)
    workloads = {"ewc": ours(tasks), "DataLoader loop": plain(data)}
    if not ours_only:
        workloads["avalanche Naive"] = avalanche(data)
    measured = best_seconds(workloads, ROUNDS)
    rows: list[ResultRow] = [
        {"method": name, "samples per second": SAMPLES / measured[name], "multiple": multiple}
        for name, multiple in ratios(measured).items()
    ]
    share = matrix_share(ours(tasks))
    yield ResultTable(
        f"Training throughput, 2x400, batch {BATCH_SIZE}, SGD with momentum",
        rows,
        ["multiple: of our time.", f"Matrix products take {share:.1%} of our time."],
    )


def ours(tasks: PermutedTasks) -> Callable[[], object]:
    """One epoch of the training loop, without measurements."""
    config = TrainingConfig(
        method="sgd", tasks=1, epochs=1, batch_size=BATCH_SIZE, lr=LR, average=0.0, segments=1
    )
    learner = PermutedMnistLearner(tasks, config)
    learner._epoch_data()
    return learner._train_segment


def plain(data: Split) -> Callable[[], object]:
    """Return one epoch of the loop that tutorials show."""
    model = mlp(2, 400)
    optimizer = SGD(model.parameters(), lr=LR, momentum=0.9)
    loader = DataLoader(TensorDataset(data.images, data.labels), BATCH_SIZE, shuffle=True)

    def one_pass() -> None:
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    return one_pass


def avalanche(data: Split) -> Callable[[], object]:
    """Return one epoch of avalanche's simplest strategy, without logging and metrics."""
    benchmarks = library("avalanche.benchmarks")
    utils = library("avalanche.benchmarks.utils")
    plugins = library("avalanche.training.plugins")
    logging.disable(logging.WARNING)
    targets = utils.DataAttribute(data.labels.tolist(), "targets")
    labels = utils.DataAttribute([0] * len(data), "targets_task_labels", use_in_getitem=True)
    dataset = utils.AvalancheDataset(
        [TensorDataset(data.images, data.labels)], data_attributes=[targets, labels]
    )
    stream = benchmarks.benchmark_from_datasets(train=[dataset]).train_stream
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is logged
        evaluator = plugins.EvaluationPlugin()
    model = mlp(2, 400)
    strategy = library("avalanche.training").Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=LR, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH_SIZE,
        train_epochs=1,
        evaluator=evaluator,
    )
    return lambda: strategy.train(stream[0])


def matrix_share(workload: Callable[[], object]) -> float:
    """Return the fraction of the time that is spent in matrix products."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        workload()
    events = profiled.key_averages()
    products = sum(e.self_cpu_time_total for e in events if e.key in MATRIX_PRODUCTS)
    return float(products / sum(e.self_cpu_time_total for e in events))
