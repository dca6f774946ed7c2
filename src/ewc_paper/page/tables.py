"""Tables of the terminal as tables of the page, with their headings marked as such."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from ewc_paper.page.markup import Markup, tag


def table_markup(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table; the first cell of a row is its heading.

    A table that is wider than the page is scrolled by itself, also with the keyboard.
    """
    columns = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = [
        tag("tr", *(_cell(number, cell) for number, cell in enumerate(row, start=0)))
        for row in rows
    ]
    table = tag("table", tag("caption", title), tag("thead", columns), tag("tbody", *body))
    return tag("div", table, class_="scroll", role="region", aria_label=title, tabindex="0")


def _cell(number: int, text: str) -> Markup:
    if number == 0 and text:
        return tag("th", text, scope="row")
    return tag("td", text)


def terminal_tables(table: Table) -> Iterator[Markup]:
    """Yield a table of the terminal, or the tables that a grid consists of."""
    inner = [cell for column in table.columns for cell in column.cells if isinstance(cell, Table)]
    for one in inner:
        yield from terminal_tables(one)
    if not inner and table.row_count:
        head = [str(column.header) for column in table.columns]
        rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
        yield table_markup(str(table.title or ""), head, list(rows))
