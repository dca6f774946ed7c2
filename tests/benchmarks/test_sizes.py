"""What a memory takes on paper is what it takes."""

import pytest
import torch

from benchmarks.studies import sizes
from benchmarks.studies.pairs import llama
from ewc.curvature import kronecker
from ewc.memory import EWC
from examples.finetune_lm import QUICK, Untrained, untrained


@pytest.mark.parametrize("make", [untrained, llama])
def test_the_count_is_that_of_a_memory(make: Untrained, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sizes, kronecker):
        monkeypatch.setattr(module, "LEADING", 40)  # of 32 to 300 rows
    with torch.random.fork_rng(devices=[]):
        model = make(QUICK)
        memory = EWC(model, strength=1.0, curvature="kronecker")
        rows = torch.randint(300, (2, 8))
        memory.consolidate([{"input_ids": rows, "labels": rows}], kind="sampled")
        memory.attach(optimizer := torch.optim.AdamW(model.parameters()))
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    kept: dict[str, int] = {}
    for name, tensor in memory.state_dict().items():
        of, _, rest = name.partition(".")
        part = rest.partition(".")[0] if of == "total" else of
        kept[part] = kept.get(part, 0) + tensor.numel()
    size = sizes.size_of(model)
    assert kept["anchor"] == size.parameters
    assert kept["precision"] == size.parameters - size.factored
    assert kept["force"] == size.factored
    factors = ("inputs", "outputs", "input_values", "output_values")
    assert sum(kept[part] for part in factors) == size.factors
