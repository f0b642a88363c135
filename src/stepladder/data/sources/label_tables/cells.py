"""The cells of a table of pictures, whatever file they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableCells:
    """The cells of a file.

    Attributes:
        header: column names, stripped.
        body: number and cells of each row. In a CSV, the number is the one that a spreadsheet
            shows: a row whose cells have several lines counts once.
        header_row: number of the row with the header; 0 if the file has none.
        notes: what was read in another way than a comma-separated UTF-8 file.
        unit: what the rows are called in messages.
        nested: name of each column with lists or objects, and the row of the first one.
        encoding: of the file.
        delimiter: between the cells of a CSV.
        extra_lines: number of each row over several lines, and how many it has beyond the first.
    """

    header: list[str]
    body: list[tuple[int, list[str]]]
    header_row: int
    notes: tuple[str, ...] = ()
    unit: str = "row"
    nested: Mapping[str, int] = field(default_factory=dict)
    encoding: str = "utf-8"
    delimiter: str = ","
    extra_lines: tuple[tuple[int, int], ...] = ()

    def lines_of(self, number: int) -> tuple[int, int]:
        """Return the first and the last line of a row."""
        num_before = sum(extra for row, extra in self.extra_lines if row < number)
        extra = dict(self.extra_lines).get(number, 0)
        return number + num_before, number + num_before + extra
