"""The commands `ewc report` and `ewc watch`; what they need is imported when they are called."""

import argparse
from pathlib import Path
from typing import Any

from ewc_paper.errors import RunError
from ewc_paper.terminal import printable


def add_page_commands(commands: Any) -> None:
    """Add the commands to the parsers of `ewc`."""
    report = commands.add_parser("report", help="write the page of a run, or of several")
    report.add_argument(
        "directories", metavar="DIR", nargs="+", help="a run, or a directory of runs"
    )
    report.add_argument(
        "--out", metavar="FILE", help="the page (default: report.html in DIR, or here for several)"
    )
    report.set_defaults(do=write_page)
    watch = commands.add_parser("watch", help="show the page in a browser while the run goes on")
    watch.add_argument("directory", metavar="DIR", help="a run, or a directory of runs")
    watch.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="of 127.0.0.1 (default: a free one)"
    )
    watch.set_defaults(do=watch_page)


def write_page(options: argparse.Namespace) -> int:
    """Write the page, and say where it is."""
    from ewc_paper.page.report import FILE_NAME, build_page
    from ewc_paper.runs.files import refuse_link, replace_file

    directories = [Path(one) for one in options.directories]
    place = directories[0] if len(directories) == 1 else Path()
    file = Path(options.out) if options.out else place / FILE_NAME
    refuse_link(file)
    replace_file(file, build_page(directories))
    print(f"page: {printable(str(file))}")
    return 0


def watch_page(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from ewc_paper.page.watch import serve

    if not 0 <= options.port <= 65_535:
        raise RunError(f"--port must be 0 to 65535, got {options.port}")
    serve(Path(options.directory), options.port)
    return 0
