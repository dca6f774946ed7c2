"""What the ranks run in the tests of models that FSDP2 shards, and of FSDP1, which is refused."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import cross_entropy

import ewc
from ewc.checkpoint import load_checkpoint
from ewc.fisher.sharded_gradients import gathered_parameters
from ewc.sharding import is_sharded, same_layout
from support.data_parallel import broken_in_rank_2
from support.rank_tasks import (
    error_of,
    learn_two_tasks,
    make_model,
    make_task,
    uneven_part,
    whole,
)  # fmt: skip

Sequences = list[tuple[Tensor, Tensor]]


def sharded(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Shard the layers of a model one by one; the last is gathered with the model itself."""
    for layer in model[:-1]:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def two_tasks(meshes: dict[int, DeviceMesh]) -> dict[str, Any]:
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


def other_calls(mesh: DeviceMesh) -> dict[str, Any]:
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
