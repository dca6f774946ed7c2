"""The paper's whole program: its networks, what they cost, and how long clusters take for them.

    python -m benchmarks.cluster.program

Networks are counted from the presets `paper`, with 50 combinations for `many-tasks`. A training
step on MNIST is measured here, in CPU time of one thread; an agent step is taken from
docs/benchmarks.md. Clusters are simulated: every network goes to the first free CPU, longest first.
"""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import ewc
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.mnist.network import mlp
from ewc_paper.runs.engine import Part
from ewc_paper.sweeps.sweep import Plan

AGENT_STEPS_PER_SECOND = 38.0  # docs/benchmarks.md: the paper's network, Double Q, one thread
AGENT_CHECKPOINT_BYTES = 6 * 4 * 6.6e6  # weights, target, two of RMSProp and two of the memory
GAMES = ("games", "perturbation")
TRAIN_IMAGES = 60_000
SEARCH = (
    "lr=log:1e-5..1e-3",
    "dropout_lr=log:1e-5..1e-3",
    "width=400..2000",
    "strength=log:10..1e4",
)
CPUS_PER_NODE = 16
CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Network:
    """One network of the program."""

    experiment: str
    hours: float  # of one core
    checkpoint_bytes: float


def step_seconds(width: int, layers: int, batch: int, steps: int = 30) -> float:
    """CPU time of a training step with a memory of one task attached; the best of three rounds."""
    torch.set_num_threads(1)
    model = mlp(layers, width, dropout=False, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    memory = ewc.EWC(model, strength=100.0)
    images, labels = torch.rand(batch, 784), torch.randint(0, 10, (batch,))
    memory.consolidate([(images, labels)], task="0")
    memory.attach(optimizer)
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        rounds.append((time.process_time() - start) / steps)
    return min(rounds)


def weights(width: int, layers: int) -> int:
    return 784 * width + (layers - 1) * width**2 + 10 * width


class Costs:
    """Hours of networks on MNIST, from steps that are measured once per shape and batch size."""

    WIDTHS = (100, 400, 1200, 2000)

    def __init__(self) -> None:
        self.measured: dict[tuple[int, int, int], float] = {}

    def hours(self, part: Part) -> float:
        """Hours of one core for a network; a width in between costs as its weights do."""
        recipe = part.config["recipe"]
        batch = recipe["batch_size"]
        images = TRAIN_IMAGES - part.config.get("validation_samples", 0)
        steps: float = recipe["tasks"] * recipe["epochs"] * images / batch
        return steps * self.step(recipe["width"], recipe["layers"], batch) / 3600

    def step(self, width: int, layers: int, batch: int) -> float:
        nearest = min(self.WIDTHS, key=lambda known: abs(known - width))
        key = (nearest, layers, batch)
        if key not in self.measured:
            self.measured[key] = step_seconds(*key)
        return self.measured[key] * weights(width, layers) / weights(nearest, layers)


def mnist_networks(configs: Sequence[Experiment], costs: Costs) -> list[Network]:
    """The networks of experiments on permuted MNIST."""
    parts = [(config.name, part) for config in configs for part in config.parts()]
    return [Network(name, costs.hours(part), _checkpoint(part)) for name, part in parts]


def _checkpoint(part: Part) -> float:
    """Bytes of a checkpoint: the weights, and two tensors of the memory for each."""
    recipe = part.config["recipe"]
    return 3 * 4 * weights(recipe["width"], recipe["layers"])


def game_networks() -> list[Network]:
    """The networks of the experiments on Atari; random players cost next to nothing."""
    networks = []
    for name in GAMES:
        for part in EXPERIMENTS[name].preset("paper").parts():
            steps = len(part.config["schedule"]) * part.config["settings"]["segment_steps"]
            hours = steps / AGENT_STEPS_PER_SECOND / 3600
            networks.append(Network(name, hours, AGENT_CHECKPOINT_BYTES))
    return [network for network in networks if network.hours > 0]


def program(costs: Costs) -> list[Network]:
    """All networks of the paper's evidence, with the best of the search on three new seeds."""
    plain = [EXPERIMENTS[name].preset("paper") for name in ("learning-curves", "fisher-overlap")]
    base = ManyTasks.preset("paper")
    plan = Plan(base, SEARCH, 50, 1, grid=False, best_seeds=3)
    search = [plan.config(trial, 0) for trial in range(plan.trials)]
    # At most one winner per method and number of tasks: as many again as winners can differ.
    best = [
        plan.config(trial, seed, methods=(method,))
        for method in ("ewc", "dropout")
        for trial in range(base.tasks)
        for seed in plan.reporting_seeds
    ]
    return mnist_networks([*plain, *search, *best], costs) + game_networks()


def makespan_hours(networks: Sequence[Network], cpus: int) -> float:
    """When the last network ends, if each goes to the first free CPU, the longest first."""
    free = [0.0] * min(cpus, len(networks))
    heapq.heapify(free)
    for hours in sorted((network.hours for network in networks), reverse=True):
        heapq.heappush(free, heapq.heappop(free) + hours)
    return max(free)


def main() -> None:
    """Print the counts, and what clusters of 1 to 1,000 nodes make of them."""
    costs = Costs()
    networks = program(costs)
    for (width, layers, batch), seconds in sorted(costs.measured.items()):
        print(f"step of {layers}x{width}, batch {batch}: {1000 * seconds:.2f} ms of CPU time")
    for name in dict.fromkeys(network.experiment for network in networks):
        hours = [network.hours for network in networks if network.experiment == name]
        print(
            f"{name}: {len(hours)} networks, {sum(hours):,.0f} core hours, "
            f"the longest {max(hours):,.1f} hours"
        )
    on_mnist = [network for network in networks if network.experiment not in GAMES]
    for group, some in (("MNIST", on_mnist), ("all", networks)):
        for nodes in (1, 10, 100, 1000):
            print(f"{group}, {nodes} nodes of {CPUS_PER_NODE} CPUs: {_simulated(some, nodes)}")


def _simulated(networks: Sequence[Network], nodes: int) -> str:
    """What a cluster makes of the networks, in words."""
    cpus = nodes * CPUS_PER_NODE
    hours = makespan_hours(networks, cpus)
    busy = sum(network.hours for network in networks) / (hours * cpus)
    bytes_each = sum(network.checkpoint_bytes for network in networks) / len(networks)
    disk = min(cpus, len(networks)) * bytes_each / CHECKPOINT_SECONDS
    return (
        f"{hours:,.0f} hours, {busy:.1%} busy, checkpoints {disk / 1e6:,.0f} MB/s, "
        f"{len(networks) / hours:,.1f} networks started per hour"
    )


if __name__ == "__main__":
    main()
