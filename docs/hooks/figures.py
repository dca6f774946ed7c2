"""Shows figures in the colors of the page, and adds the pages of the stored runs.

Every SVG of a stored run gets a twin for dark pages, and each image of it becomes two, of which the
theme shows one; wide ones get a class of that name. The page of each run, as `ewc report` writes
it, is beside its figures.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.structure.files import File, Files

from ewc.version import __version__
from ewc_paper.page.charts import dark_picture
from ewc_paper.page.report import build_figure_page, build_page

DARK_PAGE = "#1e2129"  # the background of the scheme `slate`
CLIPS = "games-clips"
IMAGE = re.compile(r'<img alt="([^"]*)" src="([^"]*results/([^"]*))\.svg"([^>]*?)/?>')
WIDTH = re.compile(r'<svg [^>]*?width="([0-9.]+)pt"')
WIDE = 500.0  # points: more than one panel, which would be too small beside text or on a phone


def on_config(config: Any) -> Any:
    """Called by MkDocs with its settings: the version is shown, and where the repository is."""
    config.site_name = f"{config.site_name} {__version__}"
    config.repo_url = config.repo_url or _repository()
    if config.repo_url:
        config.repo_name = urlsplit(config.repo_url).path.strip("/") or "repository"
    return config


def _repository() -> str:
    """Return the address of the repository that this is a clone of; empty if it has none."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    question = ["git", "config", "--get", "remote.origin.url"]
    said = subprocess.run(question, capture_output=True, text=True, check=False).stdout.strip()
    said = re.sub(r"^git@([^:]+):", r"https://\1/", said).removesuffix(".git")
    address = urlsplit(said)
    if address.scheme != "https" or address.hostname is None:
        return ""
    return f"https://{address.hostname}{address.path}"  # without any name or password in it


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs with all files of the site: dark figures and pages of runs are added."""
    results = Path(config.docs_dir) / "results"
    for figure in sorted(results.glob("*/figures/*.svg")):
        place = figure.relative_to(config.docs_dir).as_posix()
        picture = dark_picture(figure.read_text(encoding="utf-8"), DARK_PAGE)
        _add(files, config, f"{place.removesuffix('.svg')}-dark.svg", picture.encode())
    runs = {file.parent for name in ("config", "sweep") for file in results.glob(f"*/{name}.json")}
    for run in sorted(runs):
        _add(files, config, f"results/{run.name}/report.html", build_page([run]))
        if any(run.glob("parts/*/clips/*.npz")):
            _add(files, config, f"results/{run.name}/clips.html", build_figure_page(run, CLIPS))
    return files


def _add(files: Files, config: Any, place: str, content: bytes) -> None:
    files.append(File.generated(config, place, content=content))


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of a page: a figure becomes a light and a dark one."""

    def two(image: re.Match[str]) -> str:
        alt, place, name, more = image.groups()
        drawn = (Path(config.docs_dir) / "results" / f"{name}.svg").read_text(encoding="utf-8")
        width = WIDTH.search(drawn)
        more += ' class="wide"' if width and float(width[1]) > WIDE else ""
        return (
            f'<img alt="{alt}" src="{place}.svg#only-light"{more}>'
            f'<img alt="{alt}" src="{place}-dark.svg#only-dark"{more} loading="lazy">'
        )

    return IMAGE.sub(two, html)
