"""Output that cannot be written, and texts that a terminal would obey, are harmless."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import FLAGS, write_data

from ewc_paper.runs.directory import RunDirectory
from ewc_paper.terminal import console, guarded, printable

EWC = [sys.executable, "-m", "ewc_paper"]


def test_control_characters_are_not_shown() -> None:
    assert printable("a\x1b[31mred\x07 b\n\tc \u202e θ₁ [bold]") == "a?[31mred? b  c ? θ₁ [bold]"


def test_markup_is_shown_as_it_is() -> None:
    terminal = console()
    with terminal.capture() as captured:
        terminal.print("[red]a[/red] [/] :warning:")
    assert captured.get() == "[red]a[/red] [/] :warning:\n"


def test_an_error_of_the_system_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        return len(Path("/dev/null/x").read_bytes())

    assert guarded(command, ()) == 1
    assert capsys.readouterr().err == "ewc: cannot use /dev/null/x (Not a directory)\n"


def test_a_mistake_in_the_program_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0, (KeyError,))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_is_shown_in_any_encoding(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [*EWC, "run", "games", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"? of EWC" in done.stdout
    assert done.stderr == b""


def complaint_of(arguments: list[str], stdout: int, *, unbuffered: bool) -> str:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    done = subprocess.run(
        [*EWC, *arguments], stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(["list"], False), (["list"], True), (["--version"], False)],
)
def test_a_full_disk_is_one_line(arguments: list[str], unbuffered: bool) -> None:
    with open("/dev/full", "w") as full:
        said = complaint_of(arguments, full.fileno(), unbuffered=unbuffered)
    assert said == "ewc: cannot write the output (No space left on device)\n"


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_pipe_that_is_closed_is_one_line(unbuffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    said = complaint_of(["list"], writing, unbuffered=unbuffered)
    os.close(writing)
    assert said == "ewc: cannot write the output (Broken pipe)\n"


def processes_of(group: int) -> list[str]:
    """The processes of a group that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if process_group == str(group) and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize("where", ["a closed pipe", "a full disk", "ascii"])
def test_a_run_whose_output_is_lost_stops_with_its_workers(tmp_path: Path, where: str) -> None:
    data = write_data(tmp_path / "data")
    options = [*FLAGS, "--epochs", "2" if where == "ascii" else "5000", "--methods", "ewc", "sgd"]
    out = ["--out", str(tmp_path / "run"), "--data", str(data), "--checkpoint-seconds", "1000"]
    command = [*EWC, "run", "learning-curves", *options, *out]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii" if where == "ascii" else "utf-8"}
    stdout = open("/dev/full", "w") if where == "a full disk" else subprocess.PIPE  # noqa: SIM115
    process = subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        if where == "a closed pipe":
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
        if where == "ascii":
            said, complaint = process.communicate(timeout=60)
            assert (process.returncode, complaint) == (0, "")
            assert "task B ? A" in said
            return
        assert process.wait(timeout=60) == 1
        complaint = process.stderr.read()
        assert complaint.startswith("ewc: cannot show the progress of the run (")
        assert complaint.count("\n") == 1
        deadline = time.monotonic() + 10  # multiprocessing's own helper ends a little later
        while processes_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not processes_of(process.pid)
    finally:
        for left in processes_of(process.pid):
            os.kill(int(left), signal.SIGKILL)
        process.stderr.close()
    for part in RunDirectory(tmp_path / "run").parts():
        assert not part.finished()
