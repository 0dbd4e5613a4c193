"""Text tables with aligned columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines with aligned columns.

    Args:
        rows: Cells of each row, the header first. All rows have the same number of cells.

    Returns:
        One line per row.

    >>> align_columns([("goal", "success"), ("psnr>=20", "5%")])
    ['goal      success', 'psnr>=20  5%']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table_from_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows of named values as a table, with four significant digits.

    Args:
        rows: Values by column name. All rows have the columns of the first.

    Returns:
        The table. A single row is written vertically, one line per column.

    Edge cases: no rows give an empty text.

    >>> print(table_from_rows([{"attack": "dlg", "success": 0.123456}, {"attack": "none", "success": None}]))
    attack  success
    dlg     0.1235
    none    -
    >>> print(table_from_rows([{"attack": "dlg", "success": 0.5}]))
    attack   dlg
    success  0.5
    >>> table_from_rows([])
    ''
    """
    if not rows:
        return ""
    if len(rows) == 1:
        return "\n".join(align_columns([(name, _format_cell(value)) for name, value in rows[0].items()]))
    return "\n".join(align_columns([tuple(rows[0]), *(tuple(map(_format_cell, row.values())) for row in rows)]))


def _format_cell(value: object) -> str:
    r"""Format a value for a cell of a table.

    >>> _format_cell(0.123456), _format_cell(True), _format_cell(None), _format_cell("a\nb")
    ('0.1235', 'yes', '-', 'a b')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
