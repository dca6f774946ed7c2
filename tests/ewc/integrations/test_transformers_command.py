"""The command that makes a memory file: what it sums, that it goes on after a kill, its errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import tiny_gpt2
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import ewc
from ewc.integrations import transformers_command as command
from ewc.integrations.transformers import joined, pieces_of, read_pieces
from ewc.integrations.transformers_command import FisherSum, main
from ewc.storage import read_tensors

SMALL = ["--sequences", "40", "--length", "8", "--batch-size", "3"]
OWN = ["--own-text", "--curvature", "kronecker", *SMALL]


def tokenizer() -> PreTrainedTokenizerFast:
    words = WordLevel({f"wörd{n}": n for n in range(32)}, unk_token="wörd0")
    split = Tokenizer(words)
    split.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=split, eos_token="wörd0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    tiny_gpt2().save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


def run(model: Path, *options: Any) -> int:
    return main([str(model), *map(str, options)])


def content(directory: Path) -> dict[str, Any]:
    """All files, those of tensors without the order of their metadata, which is not fixed."""
    found: dict[str, Any] = {}
    for file in directory.iterdir():
        if file.suffix == ".safetensors":
            stored = read_tensors(file)
            tensors = {name: (t.dtype, t.numpy().tobytes()) for name, t in stored.tensors.items()}
            found[file.name] = (tensors, stored.metadata)
        else:
            found[file.name] = file.read_bytes()
    return found


@pytest.mark.parametrize("curvature", ["kronecker", "diagonal"])
def test_the_sum_over_parts_is_the_fisher_of_all_batches(curvature: str) -> None:
    torch.manual_seed(0)
    model = tiny_gpt2().double()
    lengths = ((5, 7, 4), (8,), (3, 8, 8, 6), (2, 8))  # filled up, to different widths
    parts = [
        [joined([torch.randint(32, (n,)) for n in part]), joined([torch.randint(32, (5,))])]
        for part in lengths
    ]
    fisher_of = ewc.fisher_kronecker if curvature == "kronecker" else ewc.fisher_diagonal
    sums = FisherSum()
    for part in parts:
        sums.add(fisher_of(model, part, kind="empirical"), part)
    found = sums.mean(curvature)
    expected = fisher_of(model, [batch for part in parts for batch in part], kind="empirical")
    assert sums.samples == sum(len(part) + 1 for part in lengths)
    if isinstance(expected, ewc.KroneckerFisher):
        assert found.factors.keys() == expected.factors.keys()
        for name, own in expected.factors.items():
            other = found.factors[name]
            torch.testing.assert_close(other.inputs, own.inputs)
            torch.testing.assert_close(other.outputs, own.outputs)
            assert (other.bias, other.inputs_first) == (own.bias, own.inputs_first)
            assert other.positions == pytest.approx(own.positions)
        found, expected = found.diagonal, expected.diagonal
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_its_memory_is_of_that_model_and_text(model: Path, tmp_path: Path) -> None:
    words = " ".join(f"wörd{2 + n % 20}" for n in range(3000))
    (tmp_path / "a.txt").write_text(words, encoding="utf-8")
    options = ["--text", tmp_path / "a.txt", "--curvature", "kronecker", *SMALL]
    assert run(model, *options, "--out", tmp_path / "m", "--name", "us/tiny") == 0
    memory = ewc.EWC.from_pretrained(tmp_path / "m", tiny_gpt2())
    assert (memory.tasks, memory.curvature) == (("base model",), "kronecker")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["model"], config["card"]["samples"]) == ("us/tiny", 40)
    assert set(content(tmp_path / "m")) == {"memory.safetensors", "config.json", "README.md"}
    pieces = pieces_of([tmp_path / "a.txt"], 40, 8)
    rows = [
        row
        for n in range(0, 40, 5)
        for row in read_pieces(pieces[n : n + 5], tokenizer(), 8)["input_ids"]
    ]
    inputs = [
        tiny_gpt2().transformer.wte(row) + tiny_gpt2().transformer.wpe.weight[:8] for row in rows
    ]
    normed = torch.cat([tiny_gpt2().transformer.h[0].ln_1(each) for each in inputs]).detach()
    factor = memory._wells.total.layers["transformer.h.0.attn.c_attn.weight"].inputs.full()
    torch.testing.assert_close(
        factor[:-1, :-1], normed.T @ normed / len(normed), atol=1e-5, rtol=1e-4
    )


def test_pieces_lie_in_all_of_the_text_and_begin_with_whole_words(tmp_path: Path) -> None:
    big, small, empty = (tmp_path / name for name in ("big", "small", "empty"))
    big.write_text(" ".join(f"wörd{n}" for n in [*range(2, 32)] * 40), encoding="utf-8")
    small.write_text("wörd4 wörd5", encoding="utf-8")
    empty.write_text("")
    half = tmp_path / "half"
    half.write_text(" ".join(f"wörd{n}" for n in [*range(2, 32)] * 20), encoding="utf-8")
    pieces = pieces_of([big, half, empty], 30, 8)
    assert [sum(p.file == file for p in pieces) for file in (big, half, empty)] == [20, 10, 0]
    of_big = [piece for piece in pieces if piece.file == big]
    assert [p.start for p in of_big[1:]] == [p.stop for p in of_big[:-1]]
    assert (of_big[0].start, of_big[-1].stop) == (0, big.stat().st_size)
    batch = read_pieces(pieces, tokenizer(), 8)
    for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        said = row[mask > 0]
        assert torch.equal(said, (said[0] - 2 + torch.arange(len(said))) % 30 + 2)  # none is cut
    assert len(pieces_of([small], 20, 8)) == 1  # no text twice
    many = [tmp_path / f"{n}" for n in range(30)]
    for file in many:
        file.write_text("wörd4 wörd5 wörd6", encoding="utf-8")
    assert len({piece.file for piece in pieces_of(many, 20, 8)}) == 20
    assert read_pieces([pieces_of([small], 1, 8)[0]] * 2, tokenizer(), 1) is None


@pytest.mark.parametrize("at", [1, 3])
def test_a_run_that_was_stopped_ends_with_the_same_files(
    model: Path, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(model, *OWN, "--out", tmp_path / "whole") == 0
    calls, fisher = [], command.fisher_kronecker

    def stopping(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        return fisher(*arguments, **options)

    monkeypatch.setattr(command, "fisher_kronecker", stopping)
    monkeypatch.setattr(command, "SAVING", 1e9)  # after each part
    assert run(model, *OWN, "--out", tmp_path / "parts") == 130
    assert set(content(tmp_path / "parts")) == {"partial.safetensors"}
    assert run(model, *OWN, "--out", tmp_path / "parts") == 0
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert len(calls) == 4 + 1  # of 12 sequences at most: nothing was done twice


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_files(model: Path, tmp_path: Path) -> None:
    options = [*OWN, "--sequences", "400"]
    assert run(model, *options, "--out", tmp_path / "whole") == 0
    call = [sys.executable, "-m", "ewc.integrations.transformers", str(model), *options]
    places = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen([*call, "--out", str(tmp_path / "parts")], env=places)
    while not (tmp_path / "parts" / "partial.safetensors").is_file():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "parts" / "config.json").exists()
    assert run(model, *options, "--out", tmp_path / "parts") == 0
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_other_options_do_not_go_on_with_a_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(command, "SAVING", 1e9)
    with monkeypatch.context() as patched:
        patched.setattr(
            ewc.EWC, "save_pretrained", lambda *_, **__: exec("raise KeyboardInterrupt")
        )
        assert run(model, *OWN, "--out", tmp_path / "m") == 130
    assert run(model, *OWN, "--seed", "1", "--out", tmp_path / "m") == 2
    assert "the beginning of a run with another seed (0)" in capsys.readouterr().err
    assert run(model, *OWN, "--out", tmp_path / "m") == 0
    before = content(tmp_path / "m")
    assert run(model, *OWN, "--out", tmp_path / "m") == 0
    assert "is there already" in capsys.readouterr().out
    assert run(model, *OWN, "--length", "7", "--out", tmp_path / "m") == 2
    assert "a memory that was made otherwise" in capsys.readouterr().err
    assert content(tmp_path / "m") == before


def test_errors_are_one_line(model: Path, tmp_path: Path, capsys: Any) -> None:
    bare = tmp_path / "bare"
    tiny_gpt2().save_pretrained(bare)
    (tmp_path / "empty.txt").write_text("")
    out = ["--out", tmp_path / "m"]
    cases = [
        (model, ["--text", tmp_path / "none.txt", *out], "there is no text file"),
        (model, ["--text", tmp_path / "empty.txt", "--length", 8, *out], "they are empty"),
        (model, ["--own-text", "--length", 17, *out], "at most 16, all that the model can read"),
        (model, ["--own-text", "--sequences", 0, *out], "--sequences must be at least 1"),
        (bare, ["--text", tmp_path / "empty.txt", "--length", 8, *out], "expected a tokenizer in"),
        (tmp_path / "nothing", ["--own-text", *out], "there is no model directory"),
    ]
    for place, options, expected in cases:
        capsys.readouterr()
        assert run(place, *options) == 2
        error = capsys.readouterr().err
        assert expected in error
        assert error.strip().splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "m").exists()
    assert run(bare, *OWN, *out) == 0  # its config knows where texts begin and end
