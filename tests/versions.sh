#!/usr/bin/env bash
# Runs the tests with another Python and another torch; all other versions are those of constraints.txt.
#     tests/versions.sh python3.13 2.15.0 [arguments of pytest]
# The environments are kept in .venv-versions until `make clean`. Each takes up to 8 GB, because PyPI
# only has CUDA builds of torch; they also run on machines without a GPU.
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
        "torch==$torch" --editable '.[dev]' --editable 'paper[cluster,games,tensorboard]'
    touch "$venv/.dev"
fi
"$venv/bin/python" -m pytest "$@"
