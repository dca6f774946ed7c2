"""Results are printed with their units and stored with the machine."""

import io
import json

import pytest
import torch
from rich.console import Console

from benchmarks.tables import ResultTable, Value, as_json, format_value, print_table

TABLE = ResultTable(
    "A title", [{"method": "ewc", "multiple": 1.5, "samples": None}], notes=["multiple: of it."]
)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("samples", 10_240, "10,240"),
        ("multiple", 1.5, "1.50x"),
        ("samples per second", 22_800.4, "22,800"),
        ("method", "ewc", "ewc"),
        ("tasks", 10, "10"),
        ("difference", None, ""),
    ],
)
def test_values_are_formatted_by_their_column(column: str, value: Value, text: str) -> None:
    assert format_value(column, value) == text


def test_a_table_is_printed_with_its_title_and_notes() -> None:
    out = io.StringIO()
    print_table(TABLE, Console(file=out, width=100))
    assert all(text in out.getvalue() for text in ("A title", "1.50x", "multiple: of it."))


def test_results_are_stored_with_the_machine() -> None:
    stored = json.loads(json.dumps(as_json([TABLE])))
    assert stored["machine"]["torch"] == torch.__version__
    assert stored["tables"][0]["rows"] == [{"method": "ewc", "multiple": 1.5, "samples": None}]
