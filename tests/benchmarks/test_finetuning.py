"""Fine-tuning and LoRA: chosen by validation losses, reported by test losses, run once each."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.studies import finetuning, frontier, lora
from benchmarks.studies.finetuning import (
    AVERAGED,
    MEMORIES,
    METHODS,
    POINTS_ALONG,
    VALUES,
    FisherOptions,
    NearBase,
    Results,
    Start,
    counted,
    fisher_of,
    losses,
    tune,
)
from benchmarks.studies.frontier import COSTS, Point, Tuning, at_cost, at_loss, kept, summary
from benchmarks.studies.pairs import NEW, llama, part, words
from ewc.fisher import KroneckerFisher
from ewc_paper.figures.panel import LOOKS
from examples.finetune_lm import QUICK, Text, untrained

# -- the frontier ----------------------------------------------------------------------------------


def point(new: float, old: float) -> Point:
    """A point whose test losses are larger by 10 (new) and 20 (old)."""
    return Point(new, old, new + 10, old + 20)


def row(seed: int, method: str, value: float, *points: tuple[float, float]) -> dict[str, Any]:
    measured = [
        {"new": new, "old": old, "new_test": new + 10, "old_test": old + 20} for new, old in points
    ]
    return {"seed": seed, "method": method, "value": value, "points": measured}


def rows(seed: int) -> list[dict[str, Any]]:
    return [
        row(seed, "untrained", 0, (8.0, 8.0)),
        row(seed, "before", 0, (5.0, 2.0)),
        row(seed, "plain", 0, (4.0, 2.5), (3.0, 4.0), (3.1, 5.0)),
        row(seed, "ewc", 100, (4.0, 2.1)),
        row(seed, "ewc", 1, (3.0, 3.0)),  # not in the order of the values
        row(seed, "l2", 1, (3.0, 3.5)),
        row(seed, "l2", 2, (4.0, 2.3)),
    ]


def test_the_frontier_has_no_point_that_another_beats() -> None:
    best, middle, last = point(1.0, 5.0), point(2.0, 4.0), point(3.0, 1.0)
    beaten, lucky = point(2.5, 4.5), Point(2.0, 4.1, -99.0, -99.0)  # test losses choose nothing
    assert frontier.frontier([last, beaten, best, lucky, middle]) == [best, middle, last]


def test_between_two_points_all_losses_are_interpolated() -> None:
    line = [point(1.0, 5.0), point(3.0, 1.0)]
    found = at_loss(line, 1.5)
    assert found is not None
    assert found.values() == pytest.approx((1.5, 4.0, 11.5, 24.0))
    assert at_loss(line, 0.9) is None
    assert at_loss(line, 3.1) == point(3.0, 1.0)
    assert at_loss([], 1.0) is None


def test_a_cost_is_a_share_of_the_perplexity_at_the_best_step_of_plain_training() -> None:
    found = frontier.tunings([*rows(0), *rows(1)[:2]])
    assert set(found) == {0}  # the other seed has no plain training
    tuning = found[0]
    assert tuning.plain == point(3.0, 4.0)
    assert len(tuning.lines["early stopping"]) == 3
    assert [p.new for p in tuning.lines["ewc"]] == [3.0, 4.0]  # by value
    at = at_cost(tuning, "ewc", 0.05)
    assert at is not None
    assert math.exp(at.new) == pytest.approx(1.05 * math.exp(3.0))
    assert at.old_test == pytest.approx(23.0 - 0.9 * math.log(1.05))
    assert at_cost(tuning, "never run", 0.05) is None


def test_the_share_that_is_kept() -> None:
    before, plain = point(5.0, 2.0), point(3.0, 4.0)
    tuning = Tuning(point(8.0, 8.0), before, plain, {})
    kept_by = [kept(tuning, some) for some in (before, plain, point(3.5, 2.5))]
    assert kept_by == pytest.approx([1, 0, 0.75])


def test_the_tables_say_how_far_ewc_lies_below() -> None:
    references, methods, _, advantages = summary(frontier.tunings([*rows(0), *rows(1)]))
    models = ["untrained", "before fine-tuning", "plain fine-tuning"]
    assert [r["model"] for r in references.rows] == models
    assert [r["method"] for r in methods.rows] == ["early stopping", "ewc", "l2"]
    gaps = [0.5 - 0.3 * math.log1p(cost) for cost in COSTS]  # both lines are straight
    below_l2 = advantages.rows[0]
    assert below_l2["line"] == "ewc below l2"
    assert float(str(below_l2["mean"])) == pytest.approx(sum(gaps) / len(gaps), abs=1e-4)
    assert len(str(below_l2["by seed"]).split()) == 2


def test_what_is_missing_is_said() -> None:
    """A seed that lacks a method, a method that did not learn enough, and one without a search."""
    extra = [row(1, "replay", 0.1, (3.0, 2.2)), row(1, "default", 0, (3.0 + math.log(1.04), 2.8))]
    extra += [row(seed, "lora", 1, (3.15, 2.0)) for seed in (0, 1)]
    _, methods, _, default, _ = summary(frontier.tunings([*rows(0), *rows(1), *extra]))
    by_name = {str(r["method"]): r for r in methods.rows}
    assert str(by_name["replay (seeds: 1)"]["+2%"]).startswith("22.1")
    assert by_name["lora"]["+5%"] == ""
    assert by_name["lora"]["+20%"] != ""
    (as_it_comes,) = default.rows
    assert (as_it_comes["kept, by seed"], as_it_comes["cost, by seed"]) == ("60.0%", "+4.0%")


def test_the_figure_has_the_mean_over_seeds(tmp_path: Path) -> None:
    def line(shift: float) -> list[Point]:
        return [Point(1.0, 2.0, 3.0 + shift, 4.0), Point(2.0, 1.0, 4.0 + shift, 3.0)]

    def tuning(shift: float) -> Tuning:
        first, last = line(shift)
        return Tuning(last, last, first, {"ewc": line(shift), "ewc kind=empirical": line(shift)})

    assert frontier.mean_line([line(0.0), line(1.0)]) == line(0.5)
    assert frontier.mean_line([line(0.0), line(1.0)[:1]]) == []  # a seed is incomplete
    more = replace(tuning(0.0), lines={"ewc": line(0.0)}, values={"ewc": [10.0, 30.0]})
    less = replace(tuning(1.0), lines={"ewc": line(1.0)[1:]}, values={"ewc": [30.0]})
    assert frontier.common_lines([more, less], "ewc") == [line(0.0)[1:], line(1.0)[1:]]
    assert frontier.common_lines([more, less], "l2") == []
    looks = frontier.LOOKS_LIKE
    assert set(looks) < {*VALUES, "early stopping"}
    assert len({LOOKS[look].color for look in looks.values()}) == len(looks)
    file = frontier.draw({0: tuning(0.0), 1: tuning(1.0)}, tmp_path / "frontier.png")
    assert file.stat().st_size > 10_000


# -- the methods -----------------------------------------------------------------------------------

SETTINGS = replace(QUICK, vocabulary=20, width=8, block=8, batch=4, tuning_steps=6, tuning_rate=0.1)


def text(low: int, high: int) -> Text:
    generator = torch.Generator().manual_seed(low)
    return Text(*(torch.randint(low, high, (16, 8), generator=generator) for _ in range(3)))


@pytest.fixture
def start() -> Iterator[Start]:
    """The old text has the first ten tokens, the new one the others."""
    with torch.random.fork_rng(devices=[]):
        model, old, new = untrained(SETTINGS), text(0, 10), text(10, 20)
        yield Start(model, old, new, text(0, 20), SETTINGS, FisherOptions(samples=16))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_learns_and_leaves_the_start_alone(start: Start, method: str) -> None:
    before = losses(start.model, start)
    points = tune(start, method, VALUES.get(method, (0.0,))[0])
    assert points[-1]["new"] < before["new"]
    assert losses(start.model, start) == before
    if method == "plain":  # measured along the way, for early stopping
        steps = [point["step"] for point in points]
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (1, SETTINGS.tuning_steps)
    assert len(points) == 1 or (method == "plain" and len(points) <= POINTS_ALONG)


@pytest.mark.parametrize("method", ["ewc", "kronecker", "l2"])
@pytest.mark.filterwarnings("ignore:.*stand still:ewc.diagnostics.EWCWarning")
def test_an_anchor_that_is_strong_enough_holds_everything(start: Start, method: str) -> None:
    before = losses(start.model, start)
    (strong,) = tune(start, method, 1e12)
    (loose,) = tune(start, method, 1e-12)
    plain = tune(start, "plain", 0.0)[-1]
    # Factors cut steps that are much longer than the others of a layer, also where nothing pulls.
    close = 0.05 if method == "kronecker" else 1e-4
    for name, loss in before.items():
        assert strong[name] == pytest.approx(loss, abs=0.01)
        assert loose[name] == pytest.approx(plain[name], abs=close)
        assert abs(plain[name] - loss) > 0.1


def test_near_the_base_the_loss_also_has_the_divergence_of_the_predictions(start: Start) -> None:
    model, rows = untrained(replace(SETTINGS, seed=1)), start.new.train
    found = NearBase(model, start.model, 2.0)(rows, rows)["loss"]
    base, now = (net(rows).logits.log_softmax(-1) for net in (start.model, model))
    apart = (base.exp() * (base - now)).sum(-1).mean()
    assert apart > 1e-4
    torch.testing.assert_close(found, model(rows, labels=rows).loss + 2.0 * apart)


def test_averaging_goes_from_the_weights_before_to_those_after(start: Start) -> None:
    for method, tuned in {"averaging": "plain", "own-averaging": "own"}.items():
        (none,), (half,), (whole,) = (tune(start, method, value) for value in (0.0, 0.5, 1.0))
        after = tune(start, tuned, AVERAGED)[-1]
        for name, loss in losses(start.model, start).items():
            assert none[name] == pytest.approx(loss, abs=1e-6)
            assert whole[name] == pytest.approx(after[name], abs=1e-6)
        assert whole["new"] < half["new"] < none["new"]


def test_each_memory_has_the_fisher_of_its_text(start: Start) -> None:
    for memory, (curvature, name) in MEMORIES.items():
        fisher = start.fisher(memory)
        assert isinstance(fisher, KroneckerFisher) == (curvature == "kronecker")
        assert start.fisher(memory) is fisher  # once
        if isinstance(fisher, KroneckerFisher):
            assert name in ("old", "own", "few", "unrelated")
    said = start.text("own")
    assert said.shape[1] == SETTINGS.block
    assert said[:, 0].eq(0).all()  # the token that begins a text
    assert not torch.equal(start.text("unrelated"), start.text("old"))


def test_replay_sees_old_text_and_as_much_new_text(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        finetuning,
        "train",
        lambda model, blocks, settings, **options: seen.update(options, blocks=blocks),
    )
    tune(start, "replay", 0.2)
    assert len(seen["blocks"]) == 16 + 4
    assert torch.equal(seen["blocks"][:16], start.new.train)
    assert int(seen["blocks"][16:].max()) < 10
    assert seen["steps"] == round(6 / 0.8)
    tune(start, "kronecker-replay", 3.0)
    assert len(seen["blocks"]) == 16 + 1
    assert len(seen["callbacks"]) == 1


def test_the_fisher_of_single_tokens(start: Start) -> None:
    """The mean over sequences of the squared gradient of one token's log-probability."""
    (batch,) = counted(start.old.train, one=True, seed=0)
    labeled = batch["labels"] != -100
    assert torch.equal(labeled.sum(1), torch.ones(16, dtype=torch.long))
    assert not labeled[:, 0].any()
    assert torch.equal(batch["labels"][labeled], start.old.train[labeled])
    options = FisherOptions(kind="empirical", samples=16, tokens="one")
    fisher = fisher_of(start.model, start.old.train, options, seed=0)
    name, bias = next((n, p) for n, p in start.model.named_parameters() if n.endswith("ln_f.bias"))
    slow = torch.zeros_like(bias)
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        loss = start.model(input_ids=ids[None], labels=labels[None]).loss
        slow += torch.autograd.grad(loss, bias)[0] ** 2 / 16
    torch.testing.assert_close(fisher[name], slow)


def test_options_reach_the_fisher(start: Start) -> None:
    fisher = fisher_of(start.model, start.old.train, FisherOptions(parameters="!*.wte.*"), 0)
    usual = start.fisher("ewc")
    assert set(usual) - set(fisher) == {"transformer.wte.weight"}
    summed = fisher_of(start.model, start.old.train, FisherOptions(positions="sum"), 0)
    per_token = usual["transformer.wte.weight"]
    # of eight tokens, seven are predicted
    torch.testing.assert_close(summed["transformer.wte.weight"], 7 * per_token)
    with pytest.raises(ValueError, match="expected tokens='all' or 'one', got 'some'"):
        fisher_of(start.model, start.old.train, FisherOptions(tokens="some"), 0)
    assert FisherOptions().label() == ""
    assert FisherOptions(kind="empirical", samples=64).label() == "kind=empirical samples=64"


# -- the texts and the architecture ----------------------------------------------------------------


def test_a_manual_page_without_markup() -> None:
    source = r""".\" a comment
.TH accept 2
.B #include
a \fIsocket\fP, \-1
.\"
'\" t
plain"""
    assert list(words(source)) == ["accept 2", "#include", "a socket, -1", "plain"]


def test_a_part_of_the_documents_has_all_kinds() -> None:
    documents = {f"{n:03}": "x" * (NEW // 10) for n in range(40)}
    assert list(part(documents)) == ["000", "004", "008", *list(part(documents))[3:]]
    assert part({"a": "b"}) == {"a": "b"}


def test_the_llama_differs_from_the_gpt2_in_what_matters() -> None:
    model = llama(SETTINGS)
    queries, keys = (model.get_parameter(f"model.layers.0.self_attn.{n}_proj.weight") for n in "qk")
    assert len(queries) == 2 * len(keys)
    names = [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" in names  # untied
    assert not [name for name in names if name.endswith("bias")]


# -- the results and the commands ------------------------------------------------------------------


def test_results_keep_what_was_measured_and_refuse_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    results = Results(file, {"width": 8})
    results.add((0, "ewc", 1.0), [{"new": 2.0}])
    whole = file.read_bytes()
    results.add((0, "ewc", 3.0), [{"new": 2.0}])
    file.write_bytes(file.read_bytes()[: len(whole) + 9])  # the last line was cut off
    again = Results(file, {"width": 8})
    assert (0, "ewc", 1.0) in again
    for key in ((0, "ewc", 3.0), (1, "ewc", 1.0), (0, "ewc kind=empirical", 1.0)):
        assert key not in again
    again.add((0, "ewc", 3.0), [{"new": 4.0}])
    assert [row["points"] for row in again.rows] == [[{"new": 2.0}], [{"new": 4.0}]]
    with pytest.raises(ValueError, match="JSON"):
        again.add((0, "ewc", 5.0), [{"new": float("nan")}])
    assert len(again.rows) == 2
    with pytest.raises(SystemExit, match=r"expected results of .*16.*found .*8.*another folder"):
        Results(file, {"width": 16})


def test_a_second_start_of_finetuning_runs_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [
        "--quick",
        "--seeds",
        "0",
        "--steps",
        "2",
        "--tuning-steps",
        "2",
        "--tested",
        "4",
        "--folder",
    ]
    with pytest.raises(SystemExit, match="run 'plain'"):  # nothing to show
        finetuning.main([*small, str(tmp_path), "--table"])
    command = [*small, str(tmp_path), "--samples", "4", "--methods", "ewc=10"]
    finetuning.main(command)
    first = capsys.readouterr().out
    ran = [line.split()[2] for line in first.splitlines() if line.startswith("seed 0")]
    assert ran == ["untrained", "before", "plain", "ewc"]  # its other Fisher options follow
    assert "before fine-tuning" in first
    assert (tmp_path / "figures" / "reference.svg").exists()
    finetuning.main([*command, "--kind", "empirical"])
    second = capsys.readouterr().out
    (line,) = (line for line in second.splitlines() if line.startswith("seed 0"))
    assert line.startswith("seed 0  ewc kind=empirical samples=4 10: ")
    monkeypatch.setattr(finetuning, "run", pytest.fail)
    finetuning.main(command)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", sorted((ROOT / "docs/results").glob("finetuning-*")))
def test_the_page_on_fine_tuning_has_the_numbers_of_the_stored_runs(folder: Path) -> None:
    lines = (folder / "results.jsonl").read_text().splitlines()
    page = (ROOT / "docs/how-to/finetune-language-models.md").read_text()
    references, _, points, *_ = summary(frontier.tunings([json.loads(li) for li in lines[1:]]))
    assert len(points.rows) > 5
    for found in [*references.rows, *points.rows]:
        numbers = list(found.values())[-2 if found in references.rows else -5 :]
        assert f"| {' | '.join(map(str, numbers))} |".replace("%", " %") in page


def test_a_second_start_of_lora_runs_nothing_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {
        name: (*lora.METHODS[name][:2], (0.1, 0.2)) for name in ("L2 on A and B", "EWC on W")
    }
    quick = replace(lora.QUICK, steps=2, tuning_steps=2, tested=4)
    for name, value in {"METHODS": methods, "REPORTED": (1,), "SAMPLES": 4, "QUICK": quick}.items():
        monkeypatch.setattr(lora, name, value)
    command = ["--quick", "--file", str(tmp_path / "lora.jsonl")]
    lora.main(command)
    first = capsys.readouterr().out
    lines = [line for line in first.splitlines() if line.startswith("seed ")]
    assert len(lines) == (1 + 2 * (2 + 2 * 3)) + (1 + 2 * (2 + 2))
    tables = first[first.index("To keep: library. To learn: reference") :]
    for name in ("untrained", "before", lora.PLAIN, *methods):
        assert tables.count(f"│ {name} ") == 2
    monkeypatch.setattr(lora, "measured", pytest.fail)
    lora.main(command)
    assert capsys.readouterr().out.endswith(tables)


def lora_row(seed: int, method: str, value: float, **found: float) -> dict[str, Any]:
    return {"seed": seed, "method": method, "value": value, "points": [found]}


def test_the_strength_of_lora_is_chosen_on_validation_parts_of_one_seed() -> None:
    line = "first: EWC on W"
    test = {"reference test": 9.0, "characters test": 9.0}
    found = [
        lora_row(0, line, 1.0, reference=1.0, characters=2.5, library=0.0, **test),
        lora_row(0, line, 10.0, reference=1.5, characters=1.5, library=9.0, **test),
        lora_row(0, line, 100.0, reference=0.9, characters=3.0, **dict.fromkeys(test, 0.0)),
        lora_row(1, line, 1000.0, reference=0.0, characters=0.0, **test),
        lora_row(0, "base: EWC on W", 5.0, library=0.0, reference=0.0),
    ]
    assert lora.best(found, line) == [10.0, 1.0, 100.0]
    assert lora.best(found, line, (1.0, 100.0)) == [1.0, 100.0]


def test_the_table_of_lora_shows_the_reported_seeds_alone() -> None:
    test = {"library test": 2.0, "reference test": 3.0}
    found = [lora_row(seed, "base: EWC on W", 10.0, **test) for seed in lora.REPORTED]
    found.append(lora_row(lora.CHOOSING, "base: EWC on W", 1.0, **dict.fromkeys(test, 99.0)))
    (shown,) = (r for r in lora.summary("base", found).rows if r["model"] == "EWC on W")
    assert shown == {
        **{"model": "EWC on W", "strength": "10", "sum": "5.000 ± 0.000"},
        **{"loss on library": "2.000 ± 0.000", "loss on reference": "3.000 ± 0.000"},
    }


@pytest.mark.parametrize("question", lora.QUESTIONS)
def test_the_page_has_the_numbers_of_the_stored_runs(question: str) -> None:
    root = Path(__file__).parents[2]
    lines = (root / "docs/results/lora.jsonl").read_text().splitlines()
    page = (root / "docs/how-to/lora.md").read_text()
    for found in lora.summary(question, [json.loads(line) for line in lines[1:]]).rows:
        numbers = list(found.values())[1:]
        assert " | ".join(["", *map(str, numbers), ""]).replace("|  |", "| |").strip() in page


def test_names_of_characters_that_follow_a_rule_are_left_out() -> None:
    names = lora.character_names()
    assert names["00000"].startswith("SPACE\nEXCLAMATION MARK")
    assert not {"04E00", "0AD00"} & names.keys()  # ideographs, syllables
