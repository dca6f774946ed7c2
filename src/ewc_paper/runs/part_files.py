"""The files of a part as one value, to send them between machines that share no storage."""

from pathlib import Path

from ewc_paper.runs.checkpoint import CURRENT, NEW, PREVIOUS
from ewc_paper.runs.engine import Job
from ewc_paper.runs.files import replace_file

Files = dict[str, bytes]  # by name


def read_files(directory: Path, job: Job) -> Files:
    """Return the files of a part that outlive it."""
    left_out = {"lock", NEW, PREVIOUS}
    if directory.is_dir():
        left_out |= {file.name for one in job.part.temporary_files for file in directory.glob(one)}
    found = directory.rglob("*") if directory.is_dir() else ()
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in found
        if file.is_file() and file.name not in left_out
    }


def write_files(directory: Path, files: Files) -> None:
    """Write the files of a part; the checkpoint last, as it refers to the others."""
    for name in sorted(files, key=lambda name: (name == CURRENT, name)):
        replace_file(directory / name, files[name])
