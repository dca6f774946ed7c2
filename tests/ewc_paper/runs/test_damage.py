"""Files cut, lost, changed or swapped, and options that do not fit: one line, and nothing lost.

Damages are drawn at random, of one file or two, in a run that is finished, stopped halfway or
stored without checkpoints, and in a sweep. Then `figure`, `report` and `status` must agree:
either all say in lines what is wrong, or the table is that of the undamaged run. `--resume` must
end with its metrics or give up with one line. Bad options are drawn from the declared options of
all experiments; each must be refused in one line before anything is written.

A few are drawn in CI; by hand, `EWC_DAMAGES=300 EWC_BAD_OPTIONS=500 pytest -m slow -n 0 FILE`.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest
from support.runs import OPTIONS, InlineEngine, run_through, write_data

from ewc_paper.cli import main
from ewc_paper.errors import Interrupted
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.options import flag, limits, value_type
from ewc_paper.runs.checksums import SUMS, seal
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import run_parts
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Plan, Sweep

DAMAGES = int(os.environ.get("EWC_DAMAGES", "24"))
BAD_OPTIONS = int(os.environ.get("EWC_BAD_OPTIONS", "60"))
FIRST_SEED = int(os.environ.get("EWC_FIRST_SEED", "0"))
SECONDS = 120  # a command that takes longer hangs, also on a machine that is busy
Damage = Callable[[Path, random.Random], None]


def cut(file: Path, chance: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content) or 1)])


def empty(file: Path, chance: random.Random) -> None:
    file.write_bytes(b"")


def delete(file: Path, chance: random.Random) -> None:
    file.unlink()


def garble(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 20))):
        content[chance.randrange(len(content))] = chance.randrange(256)
    file.write_bytes(content)


def blank(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 200] = bytes(len(content[start : start + 200]))
    file.write_bytes(content)


def swap(file: Path, chance: random.Random) -> None:
    """With the same file of another part, or another file of this one."""
    top = next(place for place in file.parents if place.name == "run")
    others = (set(top.rglob(file.name)) | set(file.parent.glob("*.*"))) - {file}
    other = chance.choice(sorted(one for one in others if one.is_file()) or [file])
    kept = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def pipe(file: Path, chance: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def lose(file: Path, chance: random.Random) -> None:
    """With all that is beside it: a part, a trial, or a folder of clips."""
    shutil.rmtree(file.parent)


def lines(file: Path, chance: random.Random) -> None:
    """A line that is dropped, doubled, moved to the end, or altered in one digit."""
    found = file.read_bytes().splitlines(keepends=True)
    place = chance.randrange(len(found))
    change = chance.randrange(4)
    if change == 0:
        del found[place]
    elif change == 1:
        found.insert(place, found[place])
    elif change == 2:
        found.append(found.pop(place))
    else:
        digits = [at for at, byte in enumerate(found[place]) if chr(byte).isdigit()]
        line = bytearray(found[place])
        if digits:
            line[chance.choice(digits)] = ord(chance.choice("123456789"))
        found[place] = bytes(line)
    file.write_bytes(b"".join(found))


def edit(file: Path, chance: random.Random) -> None:
    """Another value in a record or in its last row, as an editor would write it."""
    *before, last = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    record = json.loads(last)
    name = chance.choice(sorted(record))
    old = record[name]
    record[name] = chance.choice((0, 1, 0.99, "ewc", None, [1], {}, not old))
    text = json.dumps(record, indent=None if before or file.suffix == ".jsonl" else 2)
    file.write_text("".join(f"{line}\n" for line in (*before, text)))


DAMAGING: tuple[Damage, ...] = (
    cut,
    empty,
    delete,
    garble,
    blank,
    swap,
    pipe,
    folder,
    lose,
    lines,
    edit,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories that are damaged, each in a folder of what it is."""
    place = tmp_path_factory.mktemp("made")
    changes = {**OPTIONS, "lr": 0.3, "data": str(write_data(place / "data"))}
    config = ManyTasks.preset("quick", **changes, methods=("ewc", "sgd"), validation_samples=40)
    whole = RunDirectory(place / "whole" / "run")
    whole.start(config.to_dict())
    for _ in run_parts(whole, config.parts(), engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    seal(whole.path)
    shutil.copytree(whole.path, place / "halfway" / "run")
    _stop_halfway(RunDirectory(place / "halfway" / "run"), config)
    stored = place / "stored" / "run"
    shutil.copytree(whole.path, stored)
    for file in [
        *stored.rglob("*.safetensors"),
        *stored.rglob("lock"),
        *stored.glob(f"*/*/{SUMS}"),
    ]:
        file.unlink()
    sweep = Sweep(place / "sweep" / "run")
    plan = Plan(config, ("lr=0.01,0.3",), 2, 1, grid=True, best_seeds=1)
    sweep.path.mkdir(parents=True)
    sweep.write(plan)
    for _ in search(sweep, plan, engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    return place


def _stop_halfway(run: RunDirectory, config: ManyTasks) -> None:
    """One part is over and the other was stopped after three pieces."""
    (run.path / SUMS).unlink()
    part = next(part for part in config.parts() if part.name.startswith("sgd"))
    place = run.part(part.name)
    place.remove(["*.jsonl", "*.safetensors", SUMS])
    turns = iter((False, False, True))
    with pytest.raises(Interrupted):
        run_through(part.make(part.config), place, checkpoint_seconds=0, stop=lambda: next(turns))


@contextmanager
def time_limit(what: str) -> Iterator[None]:
    def hang(*_: object) -> None:
        pytest.fail(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Asker:
    """Gives commands and holds what every answer must be like."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, what: str, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        with time_limit(f"{what}: {' '.join(arguments[:1])}"):
            try:
                code = main(arguments)
            except SystemExit as ended:
                code = int(str(ended.code))
        out, err = self._capsys.readouterr()
        assert code in (0, 1, 2), what
        assert "Traceback" not in out + err, what
        assert "\x1b" not in out + err, what
        assert code == 0 or out + err, what
        assert all(line.startswith("ewc") for line in err.splitlines()), f"{what}: {err}"
        return code, out, err


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Asker:
    return Asker(capsys)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are run in this process: thousands of starts of workers would take the time."""
    for name in ("run", "sweep"):
        monkeypatch.setattr(f"ewc_paper.cli.{name}.make_engine", lambda running: InlineEngine())


def metrics(top: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(top)): file.read_bytes()
        for file in sorted(top.rglob("metrics.jsonl"))
        if file.is_file() and "damaged" not in file.parts
    }


def harmless(kind: str, damage: Damage, file: Path) -> bool:
    """Whether it may pass without notice, as what is missing is run again.

    These are rows after the last checkpoint of a part, and whole parts of a run that goes on.
    """
    if damage is lose:
        return kind == "halfway"
    unfinished = kind == "halfway" and file.name == "metrics.jsonl" and "sgd" in str(file)
    return unfinished and damage in (lines, edit, swap)


@pytest.mark.slow
def test_damage_is_noticed_by_all_readers_or_harmless(
    made: Path, tmp_path: Path, ask: Asker
) -> None:
    expected = {
        kind: metrics(made / ("sweep" if kind == "sweep" else "whole") / "run")
        for kind in ("whole", "halfway", "stored", "sweep")
    }
    tables: dict[str, str] = {}
    refused = 0
    for seed in range(FIRST_SEED, FIRST_SEED + DAMAGES):
        chance = random.Random(seed)
        kind = chance.choice(list(expected))
        run = tmp_path / str(seed) / "run"
        shutil.copytree(made / kind / "run", run)
        if kind not in tables:
            code, table, _ = ask(kind, "figure", str(run))
            assert code == 0
            tables[kind] = _numbers(table)
            assert ask(kind, "status", str(run))[0] == 0
            shutil.rmtree(run / "figures", ignore_errors=True)
        what, may_differ, said_alike = f"seed {seed}:", False, True
        for _ in range(chance.choice((1, 1, 2))):
            names = sorted(
                file for file in run.rglob("*") if file.is_file() and "figures" not in file.parts
            )
            file = chance.choice(names)
            damage = chance.choice([one for one in DAMAGING if _fits(one, file)])
            what += f" {damage.__name__} {kind}/{file.relative_to(run)}"
            damage(file, chance)
            may_differ |= harmless(kind, damage, file)
            said_alike &= file.name not in ("previous.safetensors", "progress.json", "lock")

        code, table, _ = ask(what, "figure", str(run))
        told = ask(what, "status", str(run))[0]
        reported = ask(what, "report", str(run), "--out", str(run.parent / "page.html"))[0]
        if said_alike:
            assert code == told == reported, what
        refused += code
        if code == 0 and not may_differ:
            assert _numbers(table) == tables[kind], what

        command = "sweep" if kind == "sweep" else "run"
        code, _, said = ask(what, command, "many-tasks", "--out", str(run), "--resume")
        if code == 0:
            assert metrics(run) == expected[kind], what
        else:
            assert said, what
        shutil.rmtree(run.parent)
    print(f"{DAMAGES} damages, {refused} refused")


def _numbers(table: str) -> str:
    return "\n".join(line for line in table.splitlines() if not line.startswith("figure: "))


def _fits(damage: Damage, file: Path) -> bool:
    """Whether a damage can be done to a file."""
    content = file.read_bytes()
    if damage is lose:
        return file.parent.name != "run"
    if damage in (lines, edit):
        return bool(content) and file.suffix in (".json", ".jsonl")
    return bool(content) or damage in (delete, pipe, folder)


class Accepted(Exception):
    """A run was started."""


def bad_values(field: Field[Any], chance: random.Random) -> list[str]:
    """Values for an option, one of which at least does not fit."""
    kind, choices = value_type(field), field.metadata.get("choices")
    if choices:
        return [chance.choice(("x" * 80, "", "None", choices[0].upper() + "!", "1"))]
    if kind is str:
        return [chance.choice(("", " ", "/nowhere/at/all", "\x1b[2J", "minatar/"))]
    low, high = limits(field)
    wrong = [
        "abc",
        "",
        "nan",
        "1e400",
        "-inf",
        "0x10",
        "1,5",
        "None",
        str(low - 1),
        f"{high * 2:g}",
    ]
    if kind is int:
        wrong += ["1.5", "1e3", str(int(low) - 10**30), str(int(high) + 1)]
    several = isinstance(field.default, tuple)
    return ["1", "1"] if several and chance.random() < 0.2 else [chance.choice(wrong)]


BAD_LOOKS = (  # at runs, with arguments that do not fit
    *(["figure", ""], ["figure", ".", "--format", "gif"], ["figure", ".", "--preset", "quick"]),
    *(["report"], ["report", "x", "--out", " "], ["report", ".", "--out", "/"], ["report", ""]),
    *(["watch", ".", "--port", "70000"], ["watch", ".", "--port", "-1"], ["watch", "", "--port"]),
    *(["status"], ["status", "a", "b"], ["status", " "], ["runs", ""], ["runs", "a", "--out", "b"]),
    *(["completion", "tcsh"], ["completion"], ["list", "all"], ["--verson"], []),
)
BAD_SPECS = (
    *("seed=", "=1,2", "seed", "seed=1..", "seed=..2", "seed=2..1", "seed=1,1", "seed=log:0..5"),
    *("seed=1.5,2", "seed=a..b", "seed=log:1,2", "seed=1..2..3", "sede=1,2", "seed=1,nan"),
)


def bad_command(chance: random.Random) -> list[str]:
    """Arguments of `ewc` that do not fit, in one of many ways."""
    name = chance.choice(list(SUMMARIES))
    experiment = EXPERIMENTS[name]
    field = chance.choice([each for each in fields(experiment) if each.type != "bool"])
    while isinstance(field.default, bool):
        field = chance.choice(list(fields(experiment)))
    way = chance.randrange(12)
    run = [chance.choice(("run", "sweep")), name]
    over = ["--over", "seed=1,2" if way == 4 else f"{field.name}=x..y"]
    if way == 0:
        word = list(chance.choice(("run", "sweep", "figure", "report", "watch", name)))
        word.insert(chance.randrange(len(word)), chance.choice("xyz"))
        return ["".join(word), *run[1:]]
    if way == 1:
        option = flag(field.name)
        return ["run", name, option[:-1] + "q", "1"]
    if way == 2:
        return ["run", name, "--preset", chance.choice(("", "laptopp", "None", "PAPER"))]
    if way in (3, 4):
        return ["sweep", name, *over]
    if way == 5:
        extra = [["--workers", "0"], ["--workers", "x"], ["--engine", "rai"], ["--gpus", "1"]]
        extra += [["--engine", "ray", "--address", a] for a in ("head", ":1", "h:0", "h:99999", "")]
        extra += [["--checkpoint-seconds", "-1"], ["--out", chance.choice(("", " "))]]
        extra += [["--resume", "--out", "/nowhere"]]
        return ["run", name, *chance.choice(extra)]
    if way == 6:
        return list(chance.choice(BAD_LOOKS))
    if way == 7:
        numbers = ("--trials", "--seeds", "--halving", "--best-seeds")
        wrong = [chance.choice(numbers), chance.choice(("-1", "x", "1e9", ""))]
        return ["sweep", name, "--over", chance.choice(BAD_SPECS), *chance.choice(([], wrong))]
    return ["run", name, flag(field.name), *bad_values(field, chance)]


@pytest.mark.slow
def test_options_that_do_not_fit_are_one_line_and_exit_code_2(
    tmp_path: Path, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object, **__: object) -> None:
        raise Accepted

    for name in ("ewc_paper.cli.run.run_to_the_end", "ewc_paper.cli.sweep._search"):
        monkeypatch.setattr(name, accept)
    monkeypatch.chdir(tmp_path)
    accepted = []
    for seed in range(FIRST_SEED, FIRST_SEED + BAD_OPTIONS):
        chance = random.Random(f"options {seed}")
        arguments = bad_command(chance)
        what = f"seed {seed}: ewc {' '.join(map(repr, arguments))}"
        with suppress(OSError):
            shutil.rmtree(tmp_path / "runs")
        try:
            code, out, err = ask(what, *arguments)
        except Accepted:
            accepted.append(what)
            continue
        assert code == 2, f"{what}: {out}{err}"
        assert err.count("\n") == 1, f"{what}: {err}"
        assert not any(word in err for word in ("None", "True", "<class", "Error(")) or any(
            "None" in one for one in arguments
        ), f"{what}: {err}"
        assert not list(tmp_path.iterdir()), what
    assert not accepted, "\n".join(accepted)
