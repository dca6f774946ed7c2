"""What a memory of a language model takes, on paper: bytes per parameter, by shape.

Counted from the shapes of the parameters, in float32, beside the weights, their gradients and the
optimizer; a test compares the count with a memory. For shapes that no machine here could hold.

    python -m benchmarks.studies.sizes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from benchmarks.measure import ResultRow, ResultTable, print_table
from ewc.curvature.kronecker import LEADING
from ewc.fisher.kronecker import LARGEST

BYTES = 4  # of an element in float32
RANK = 16  # of adapters
LLAMA: dict[str, dict[str, Any]] = {
    "Llama shape, 1 B": {
        **{"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
        "tie_word_embeddings": True,
    },
    "Llama shape, 8 B": {
        **{"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class Size:
    """Elements of a model and of what a memory keeps of it.

    Args:
        parameters: of the model.
        factored: parameters that have factors.
        factors: elements of the eigenvectors and eigenvalues, with the leading ones only.
        whole: the same without leaving any out.
        adapters: weights of adapters on the layers with factors.
    """

    parameters: int
    factored: int
    factors: int
    whole: int
    adapters: int

    def row(self, name: str) -> ResultRow:
        """Return a row: GB of each memory, and the share of the parameters that has factors."""
        diagonal = 2 * self.parameters
        rest = 2 * (self.parameters - self.factored)
        # Anchor and held force, and the weights before a step of Adam.
        layers = 3 * self.factored
        return {
            "shape": f"{name}: {self.parameters / 1e6:,.0f} M",
            "has factors": f"{self.factored / self.parameters:.0%}",
            "diagonal": _shown(diagonal, self.parameters),
            "Kronecker": _shown(rest + layers + self.factors, self.parameters),
            "all eigenvectors": _shown(rest + layers + self.whole, self.parameters),
            f"LoRA, rank {RANK}": _shown(self.whole + 2 * self.adapters, self.parameters),
        }


def _shown(elements: int, parameters: int) -> str:
    size = BYTES * elements
    return f"{size / 1e9:,.2f} GB ({size / parameters:.1f})"


def matrices(model: nn.Module) -> Iterator[tuple[int, int, bool]]:
    """Yield outputs, inputs and whether there is a bias, of each matrix that can have factors."""
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    for layer in model.modules():
        if isinstance(layer, nn.Linear | Conv1D) and layer.weight is not embedding:
            outputs, inputs = layer.weight.shape
            if isinstance(layer, Conv1D):
                outputs, inputs = inputs, outputs
            yield outputs, inputs, layer.bias is not None


def size_of(model: nn.Module) -> Size:
    """Return the elements of a model and of what a memory keeps of it."""
    factored = factors = whole = adapters = 0
    for outputs, inputs, bias in matrices(model):
        width = inputs + bias
        if max(outputs, inputs) > LARGEST:
            continue
        factored += outputs * width
        adapters += RANK * (outputs + inputs)
        for rows in (outputs, width):
            factors += rows * min(rows, LEADING) + min(rows, LEADING)
            whole += rows * rows + rows
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(parameters, factored, factors, whole, adapters)


def main() -> None:
    """Print the table."""
    rows = []
    with torch.device("meta"):
        config = GPT2Config(n_layer=4, n_embd=384, n_head=6, n_positions=128)
        rows.append(size_of(GPT2LMHeadModel(config)).row("GPT-2 shape"))
        for name, options in LLAMA.items():
            rows.append(size_of(LlamaForCausalLM(LlamaConfig(**options))).row(name))
    notes = (
        "in brackets: bytes per parameter of the model. Kronecker: while training with AdamW.",
        f"Factors have at most {LARGEST:,} rows, and keep {LEADING} eigenvectors.",
        "LoRA: a memory of the adapted weights, whose factors are kept as they are.",
    )
    print_table(ResultTable("What a memory keeps, in float32", rows, notes), Console(width=150))


if __name__ == "__main__":
    main()
