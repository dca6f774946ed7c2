#!/usr/bin/env bash
# The tests with another Python and another torch than constraints.txt pins; all else stays pinned.
#     tests/versions.sh python3.13 2.15.0 [arguments of pytest]
# The environment is kept in .venv-versions, which `make clean` removes: up to 8 GB each, as PyPI has
# only the CUDA builds of torch. They run on machines without a GPU too.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1 torch=$2
shift 2
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=.venv-versions/python$version-torch$torch
if [ ! -e "$venv/.dev" ]; then
    "$python" -m venv "$venv"
    grep -v '^torch==' constraints.txt > "$venv/constraints.txt"
    "$venv/bin/python" -m pip install --quiet --constraint "$venv/constraints.txt" \
        "torch==$torch" --editable '.[dev]' --editable 'src/ewc_paper[games,tensorboard]'
    touch "$venv/.dev"
fi
"$venv/bin/python" -m pytest "$@"
