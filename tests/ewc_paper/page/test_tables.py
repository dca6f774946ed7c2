"""A table of the terminal has the same cells on the page, with its headings marked as such."""

from xml.etree import ElementTree

from rich.table import Table

from ewc_paper.page.tables import table_markup, terminal_tables


def test_headings_are_marked_and_cells_are_escaped() -> None:
    found = ElementTree.fromstring(table_markup("title", ["", "a"], [["<x>", "1"], ["", "2"]]))
    assert found.get("tabindex") == "0"
    assert found.get("aria-label") == found.findtext("table/caption") == "title"
    assert [one.get("scope") for one in found.iter("th")] == ["col", "col", "row"]
    rows = [[cell.text or "" for cell in row] for row in found.iter("tr")]
    assert rows == [["", "a"], ["<x>", "1"], ["", "2"]]


def test_a_grid_of_tables_is_one_table_after_another() -> None:
    grid, first, second = Table.grid(), Table("a", title="first"), Table("b", title="second")
    first.add_row("1")
    second.add_row("2")
    grid.add_row(first)
    grid.add_row(second)
    titles = [
        ElementTree.fromstring(one).findtext("table/caption") for one in terminal_tables(grid)
    ]
    assert titles == ["first", "second"]


def test_a_table_without_rows_is_left_out() -> None:
    assert list(terminal_tables(Table("a"))) == []
    assert list(terminal_tables(Table.grid())) == []
