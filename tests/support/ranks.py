"""Several processes on this machine, and all that the tests run in each of them.

A process is a rank of a group that meets through a file, so no port is needed. A rank that fails,
or waits for too long, ends all of them and fails the test. Starting them takes longer than running
what is tested, so one start runs it all (`everything`).
"""

import datetime
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch import multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ewc
from ewc.checkpoint import load_checkpoint
from ewc.distributed.ranks import find_ranks
from ewc.distributed.shards import is_sharded, same_layout
from ewc.fisher.sharded import gathered_parameters
from ewc.integrations.trainer_memory import TrainerMemory

Batch = tuple[Tensor, Tensor]
SAMPLES = 8
STEPS = 20


class Trained(NamedTuple):
    """An optimizer, how the memory pulls on it, and how strongly."""

    optimizer: Callable[[Any], torch.optim.Optimizer]
    how: Literal["proximal", "gradient"]
    strength: dict[str, float]


FIXED = {"strength": 30.0}
OPTIMIZERS = {
    "sgd": Trained(partial(torch.optim.SGD, lr=0.1, momentum=0.9), "proximal", FIXED),
    "gradient": Trained(partial(torch.optim.SGD, lr=0.1), "gradient", FIXED),
    "adamw": Trained(partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1), "proximal", FIXED),
    "budget": Trained(partial(torch.optim.Adam, lr=0.01), "proximal", {"budget": "auto"}),
}


def make_model() -> nn.Sequential:
    """Layers whose rows cannot be divided equally by 2 or 4; some ranks get none of the last."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 7), nn.Sequential(nn.Linear(7, 6), nn.Tanh())
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3)).double()


def make_task(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (SAMPLES,), generator=generator)


def uneven_part(task: Batch, rank: int, size: int) -> list[Batch]:
    """A rank's batches: each rank has more samples than the one before; the last of 4 has none."""
    if size == 1:
        return [task]
    cuts = {2: [0, 3, 8], 4: [0, 1, 3, 8, 8]}[size]
    inputs, labels = (tensor[cuts[rank] : cuts[rank + 1]] for tensor in task)
    return list(zip(inputs.split(3), labels.split(3), strict=True)) if len(inputs) else []


def even_part(task: Batch, rank: int, size: int) -> Batch:
    inputs, labels = task
    return inputs[rank::size], labels[rank::size]


def learn_two_tasks(model: nn.Module, name: str, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Learn a task and consolidate it, then another while the memory pulls; return what came."""
    first, second = make_task(1), make_task(2)
    memory = ewc.EWC(model, **OPTIMIZERS[name].strength)
    fisher = memory.consolidate(uneven_part(first, rank, size), task="A", kind="exact")
    optimizer = OPTIMIZERS[name].optimizer(model.parameters())
    memory.attach(optimizer, how=OPTIMIZERS[name].how)
    inputs, labels = even_part(second, rank, size)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    strength = memory.strength
    penalty = float(memory.penalty().detach())
    shaped: dict[str, Any] = {"kind": "empirical", "floor": 0.1, "normalize": 2.0}
    second_fisher = memory.consolidate(uneven_part(second, rank, size), task="B", **shaped)
    offset = float(memory.penalty().detach())  # of both tasks, at the weights of the second
    return {
        "fisher": whole(fisher),
        "second fisher": whole(second_fisher),
        "penalty": penalty,
        "strength": strength,
        "offset": offset,
        "weights": whole(dict(bare(model).named_parameters())),
        # without remainders, which are kept only where rounding would show
        "state": whole({k: t for k, t in memory.state_dict().items() if "remainder" not in k}),
    }


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def whole(tensors: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors, with sharded ones gathered."""
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in tensors.items()
    }


def error_of(function: Callable[[], Any]) -> str:
    """The class and the message of the error that a function raises; "" if it does not."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def assert_same_learning(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Each rank has the Fishers, penalties, weights and memory of one process with all samples.

    Between ranks they do not differ at all.
    """
    for result in results:
        for name, value in expected.items():
            if isinstance(value, float):
                assert result[name] == pytest.approx(value, rel=1e-6)
                assert result[name] == results[0][name]
                continue
            assert result[name].keys() == value.keys()
            for key in value.keys() - {"values"}:  # of which the last digits may differ
                torch.testing.assert_close(result[name][key], value[key], rtol=1e-6, atol=1e-9)
                assert torch.equal(result[name][key], results[0][name][key])


def two_tasks() -> dict[str, Any]:
    """Learn two tasks in groups of 1, 2 and 4 ranks."""
    rank = distributed.get_rank()
    results: dict[str, Any] = {}
    for size in (1, 2, 4):
        group = distributed.new_group(list(range(size)))
        for name in ("sgd", "adamw", "budget") if rank < size else ():
            model = DistributedDataParallel(make_model(), process_group=group)
            results[f"{name} {size}"] = learn_two_tasks(model, name, rank, size)
    return results


def other_calls() -> dict[str, Any]:
    """What else 4 ranks may do, and what is refused."""
    rank, size = distributed.get_rank(), 4
    model, batches = make_model(), uneven_part(make_task(1), rank, size)
    world, local = ({"process_group": name} for name in ("world", "local"))
    wrapped = ewc.EWC(DistributedDataParallel(model), strength=1.0)
    own = find_ranks(model, "world")
    results: dict[str, Any] = {
        "plain": error_of(lambda: ewc.fisher_diagonal(model, batches)),
        "unknown": error_of(lambda: ewc.EWC(model, strength=1.0, process_group="all")),
        "world": ewc.fisher_diagonal(model, batches, **world),
        "local": ewc.fisher_diagonal(model, [make_task(1)], **local),
        "absolutes": ewc.importances.memory_aware_synapses(model, batches, **world),
        "draw": float(torch.rand((), generator=own.own_generator(seeded()))),
        "empty": error_of(lambda: ewc.fisher_diagonal(model, [], **world)),
        "broken": error_of(lambda: wrapped.consolidate(broken_in_rank_2(batches))),
        "tasks": list(wrapped.tasks),
        "share": own.share(10),
        "few": ewc.fisher_diagonal(model, [make_task(1)], max_samples=2, **world),
    }
    wrapped.consolidate(batches, task="after the error")
    state = wrapped.state_dict()
    memory = ewc.EWC(make_model(), strength=3.0)
    memory.load_state_dict(state)
    results["bare"] = memory.state_dict()
    with torch.no_grad():
        next(bare(model).parameters()).mul_(1 + rank)
    results["different"] = error_of(lambda: ewc.fisher_diagonal(model, batches, **world))
    return results


def in_a_trainer() -> dict[str, Any]:
    """Try the first batch of a training, and consolidate at its end, as callbacks do."""
    rank, size = distributed.get_rank(), 4
    model, batches = make_model(), [even_part(make_task(1), rank, size)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = ewc.EWC(model, strength=1.0, process_group="world")
    results: dict[str, Any] = {}
    cases = {
        "no group": (ewc.EWC(model, strength=1.0), batches),
        "broken": (memory, batches if rank != 2 else broken_in_rank_2([])),
        "works": (memory, batches),
    }
    for name, (given, own) in cases.items():
        inside = TrainerMemory(given, None, {"task": "A"})
        inside.start([optimizer])
        results[name] = error_of(partial(inside.try_out, own[0]))
        results[f"{name}, attached"] = bool(optimizer._optimizer_step_post_hooks)
    inside.finish(batches)
    return results | {"tasks": list(memory.tasks), "state": memory.state_dict()}


def broken_in_rank_2(batches: list[Batch]) -> list[Any]:
    broken = [(torch.randn(2, 5).double(), torch.tensor([1, 0, 1]))]
    return batches + broken * (distributed.get_rank() == 2)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


Sequences = list[tuple[Tensor, Tensor]]


def sharded(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Shard the layers of a model one by one; the last is gathered with the model itself."""
    for layer in model[:-1]:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def two_sharded_tasks(meshes: dict[int, DeviceMesh]) -> dict[str, Any]:
    """Learn two tasks in meshes of 2 and 4 ranks."""
    rank = distributed.get_rank()
    return {
        f"{name} {size}": learn_two_tasks(sharded(make_model(), meshes[size]), name, rank, size)
        for size, names in {2: ("sgd", "gradient"), 4: ("adamw", "budget")}.items()
        for name in names
        if rank < size
    }


def saved_and_loaded(folder: Path, meshes: dict[int, DeviceMesh]) -> dict[str, Any]:
    """Save a memory of two tasks with 4 ranks, and load it with 2."""
    saver = ewc.EWC(sharded(make_model(), meshes[4]), strength=5.0, keep_tasks=True)
    for number, task in enumerate(("A", "B"), start=1):
        saver.anchor({name: p.detach().abs() for name, p in named(saver).items()}, task=task)
        with torch.no_grad():
            for p in named(saver).values():
                p.add_(number)
    dcp.save({"memory": saver.state_dict()}, checkpoint_id=folder / "checkpoint")
    results: dict[str, Any] = {"saved": whole(saver.state_dict())}
    if distributed.get_rank() < 2:
        loader = ewc.EWC(sharded(make_model(), meshes[2]), strength=1.0, keep_tasks=True)
        load_checkpoint(loader, folder / "checkpoint")
        results["loaded"] = whole(loader.state_dict())
        results["stays sharded"] = all(
            same_layout(tensor, named(loader)[name.partition("precision.")[2]])
            for name, tensor in loader.state_dict().items()
            if "precision." in name
        )
        loader.load_state_dict(results["saved"])  # whole tensors, as of a model that is not sharded
        results["loaded from whole tensors"] = whole(loader.state_dict())
    return results


def named(memory: ewc.EWC) -> dict[str, nn.Parameter]:
    return memory._parameters.all()


def sequences() -> list[Sequences]:
    """For each of 2 ranks, sequences of its own length, with labels that do not count."""
    generator = torch.Generator().manual_seed(3)
    longer, shorter = (torch.randint(5, (2, n), generator=generator) for n in (3, 2))
    labels = torch.tensor([[0, -100, 2], [1, 1, -100]])
    return [[(longer, labels)], [(shorter[:1], labels[:1, :2])]]


def sequence_model() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    model[1].bias.requires_grad_(False)
    return model


def fisher_of_sequences(meshes: dict[int, DeviceMesh]) -> dict[str, Any]:
    """The exact Fisher, with as many backward passes as a sequence has positions and classes."""
    rank = distributed.get_rank()
    if rank >= 2:
        return {}
    model = sharded(sequence_model(), meshes[2])
    # FSDP warns of outputs that are views, which is what a linear layer returns for sequences
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    return whole(ewc.fisher_diagonal(model, sequences()[rank], parameters="!2.bias"))


def other_sharded_calls(mesh: DeviceMesh) -> dict[str, Any]:
    """What else 4 ranks may do with a sharded model, and what is refused."""
    rank, size, (inputs, labels) = distributed.get_rank(), 4, make_task(1)
    model, batches = sharded(make_model(), mesh), uneven_part(make_task(1), rank, size)
    memory = ewc.EWC(model, strength=3.0)
    model(inputs).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    results: dict[str, Any] = {
        "local": error_of(lambda: ewc.fisher_diagonal(model, batches, process_group="local")),
        "broken": error_of(lambda: memory.consolidate(broken_in_rank_2(batches))),
        "bad label": error_of(lambda: memory.consolidate(mislabeled(batches), kind="empirical")),
        "tasks": list(memory.tasks),
        "noise": error_of(lambda: ewc.perturbed(model, memory.consolidate(batches), 0.1)),
        "file": error_of(lambda: memory.save("memory.safetensors")),
        "keeps gradients": all(p.grad is gradients[n] for n, p in model.named_parameters()),
        "is sharded": all(map(is_sharded, model.parameters())),
        "mode": model.training,
    }
    exact = ewc.fisher_diagonal(model, batches)
    sampled = ewc.fisher_diagonal(model, batches, kind="sampled", max_samples=3)
    results["overlap"] = ewc.fisher_overlap(exact, sampled)
    results["overlap of the whole"] = ewc.fisher_overlap(whole(exact), whole(sampled))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    model.zero_grad()
    (cross_entropy(model(inputs), labels) + memory.penalty()).backward()
    results["gradients"] = whole({name: p.grad for name, p in model.named_parameters()})
    return results


def mislabeled(batches: Sequences) -> Sequences:
    """The batches, in rank 2 with a label that is found to be wrong after the model has run."""
    wrong = 77 * (distributed.get_rank() == 2)
    return [(inputs, labels + wrong) for inputs, labels in batches]


def fisher_with_replicas() -> dict[str, Any]:
    """The Fisher of a model that is sharded over 2 ranks, twice."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("replicate", "shard"))
    model = sharded(make_model(), mesh)
    batches = uneven_part(make_task(1), distributed.get_rank(), 4)
    memory = ewc.EWC(model, strength=1.0)
    fisher = memory.consolidate(batches, normalize=2.0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    return {"fisher": whole(fisher), "penalty": float(memory.penalty().detach())}


def most_gathered(mesh: DeviceMesh) -> int:
    """The largest number of layers, of 8, that are gathered at once while a Fisher is computed."""
    model = sharded(nn.Sequential(*(nn.Linear(3, 3) for _ in range(8))), mesh)
    gathered = {name: p for name, p in gathered_parameters(model).items() if "weight" in name}
    counts = []

    def count(*_: Any) -> None:
        counts.append(sum(p.untyped_storage().size() > 0 for p in gathered.values()))

    for layer in model:
        layer.register_forward_hook(count)
    for parameter in gathered.values():
        parameter.register_post_accumulate_grad_hook(count)
    ewc.fisher_diagonal(model, [torch.randn(1, 3)], kind="sampled")
    assert len(counts) == 16
    return max(counts)


def fsdp1() -> dict[str, Any]:
    """The first FSDP is refused, and its model works as before."""
    inputs, labels = make_task(1)
    plain, model = make_model(), make_model()
    memory = ewc.EWC(model, strength=1.0, process_group="world")
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    results: dict[str, Any] = {
        "new": error_of(lambda: ewc.EWC(wrapped, strength=1.0)),
        "fisher": error_of(lambda: ewc.fisher_diagonal(wrapped, [inputs])),
        "made before": error_of(lambda: memory.consolidate([inputs])),
    }
    for one in (plain, wrapped):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        cross_entropy(one(inputs), labels).backward()
        optimizer.step()
    results["works"] = torch.allclose(wrapped(inputs), plain(inputs), atol=1e-12)
    return results


RANKS = 4


def everything(folder: Path) -> dict[str, Any]:
    """Run in each of 4 ranks; return what the tests compare, by the names of the functions."""
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (2, 4)}
    return {
        "data_parallel.two_tasks": two_tasks(),
        "data_parallel.other_calls": other_calls(),
        "data_parallel.in_a_trainer": in_a_trainer(),
        "sharded.two_tasks": two_sharded_tasks(meshes),
        "sharded.saved_and_loaded": saved_and_loaded(folder, meshes),
        "sharded.fisher_of_sequences": fisher_of_sequences(meshes),
        "sharded.fisher_with_replicas": fisher_with_replicas(),
        "sharded.other_calls": other_sharded_calls(meshes[4]),
        "sharded.most_gathered": most_gathered(meshes[4]),
        "sharded.fsdp1": fsdp1(),
    }


SECONDS = 400  # that one program may take on a busy machine

Program = Callable[[Path], dict[str, Any]]


def run_ranks(program: Program, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Run a program in several processes; return what it returned in each.

    Args:
        program: takes a folder that all ranks share, and returns tensors and plain values. It must
            be a function at the top of a module, because each process imports it.
        ranks: number of processes.
        folder: an empty folder.
    """
    meeting = folder / f"meeting-{os.getpid()}"  # one that an earlier run left cannot be used again
    context = mp.spawn(_run, (program, ranks, folder, meeting), nprocs=ranks, join=False)
    assert context is not None
    end = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=max(0.0, end - time.monotonic())):
            assert time.monotonic() < end, f"{program.__name__} took more than {SECONDS} seconds"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _run(rank: int, program: Program, ranks: int, folder: Path, meeting: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=SECONDS / 4),
    )
    torch.save(program(folder), folder / f"{rank}.pt")
    distributed.destroy_process_group()
