"""Pairs of texts: what a language model knows, and what it is fine-tuned on.

A third text that is like neither is there for comparison. All come with Python, with PyTorch, or
with Debian's packages of manual pages:

    apt-get install manpages manpages-dev manpages-de
"""

import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from examples.finetune_lm import (
    Settings,
    Text,
    Untrained,
    language_reference,
    library_source,
    tokenized,
    untrained,
)

MANUALS = Path("/usr/share/man")
NEW = 350_000  # characters of the new text, about as many as the language reference has


@dataclass(frozen=True)
class Pair:
    """What is learned first, what then, what is like neither, and by which model."""

    old: Callable[[], dict[str, str]]
    new: Callable[[], dict[str, str]]
    unrelated: Callable[[], dict[str, str]]
    untrained: Untrained = untrained

    def texts(self, settings: Settings) -> list[Text]:
        """Return the old, the new and the unrelated text, in tokens of the old one."""
        source = self.old()
        old = {name: source[name] for name in sorted(source)[:: settings.every]}
        return tokenized(settings, old, self.new(), self.unrelated())


def headers() -> dict[str, str]:
    """Return C++ headers that come with PyTorch."""
    root = Path(torch.__file__).parent / "include" / "c10"
    files = sorted(root.rglob("*.h"))
    return part({str(file.relative_to(root)): file.read_text("utf-8") for file in files})


def english_manuals() -> dict[str, str]:
    """Return the manual pages of the Linux kernel and the C library."""
    return manuals(MANUALS, "Linux man-pages")


def german_manuals() -> dict[str, str]:
    """Return some manual pages of all kinds in German."""
    return part(manuals(MANUALS / "de", ""))


def manuals(root: Path, said: str) -> dict[str, str]:
    """Return the pages of all sections whose source has these words, without markup."""
    found: dict[str, str] = {}
    for file in sorted(root.glob("man[1-8]/*.gz")):
        source = gzip.decompress(file.read_bytes()).decode("utf-8", errors="replace")
        if not source.startswith(".so ") and said in source:
            found[file.name] = "\n".join(words(source))
    if not found:
        raise SystemExit(
            f"expected manual pages in {root}, found none: "
            "apt-get install manpages manpages-dev manpages-de, or give --manuals"
        )
    return found


def words(source: str) -> Iterator[str]:
    """Yield the lines of a manual page without comments, requests and fonts."""
    for line in source.splitlines():
        if not re.match(r"[.']\s*\\\"", line):
            yield re.sub(r"\\f.|\\(?=[- ])|^[.']\s*[A-Za-z]+\s*", "", line)


def part(documents: Mapping[str, str]) -> dict[str, str]:
    """Return every n-th document, so that there are about as many characters as in `NEW`."""
    every = max(1, sum(map(len, documents.values())) // NEW)
    return {name: documents[name] for name in sorted(documents)[::every]}


def llama(settings: Settings) -> PreTrainedModel:
    """Return a Llama that has learned nothing yet: RMSNorm, rotary, grouped queries, untied."""
    torch.manual_seed(settings.seed)
    heads = max(2, settings.width // 32)
    config = LlamaConfig(
        num_hidden_layers=settings.layers,
        hidden_size=settings.width,
        intermediate_size=8 * settings.width // 3,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=settings.block,
        vocab_size=settings.vocabulary,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


PAIRS: dict[str, Pair] = {
    "reference": Pair(library_source, language_reference, headers),
    "headers": Pair(library_source, headers, language_reference),
    "manuals": Pair(english_manuals, german_manuals, language_reference, llama),
}
