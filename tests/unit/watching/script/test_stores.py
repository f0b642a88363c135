"""Statements that concatenate, by their text."""

from __future__ import annotations

from textwrap import dedent

import pytest

from stepladder.watching.script.stores import joined_by


@pytest.mark.parametrize(
    ("text", "joins", "store"),
    [
        ("self.rows = torch.cat([self.rows, row.unsqueeze(0)])[-100:]", "torch.cat", "self.rows"),
        ("rows = torch.cat((row[None], rows), dim=0)", "torch.cat", "rows"),
        ("held['x'] = torch.vstack([held['x'], x.detach()])", "torch.vstack", "held['x']"),
        ("self.rows = np.append(self.rows, row)", "np.append", "self.rows"),
        ("rows = np.concatenate([rows[1:], row.reshape(1, -1)])", "np.concatenate", "rows"),
        ("table = pd.concat([table, pd.DataFrame([row])])", "pd.concat", "table"),
        ("table = table.append(row)", "append", "table"),
        ("rows = rows + [row]", "+", "rows"),
        ("rows += (row,)", "+", "rows"),
        ("a, b = cat([a, x]), cat([b, y])", "cat", "a"),
        ("new = torch.cat([self.rows, row])", "torch.cat", ""),
        ("return torch.cat([rows, row])", "torch.cat", ""),
        ("x = torch.cat([x, layer(x)], 1)", "torch.cat", ""),
        ("x = torch.cat([x, a @ b], 1)", "torch.cat", ""),
        ("x = torch.cat([x, x.flip(2)])", "torch.cat", ""),
        ("logits = torch.cat([positive, negative], 1)", "torch.cat", ""),
        ("rows.append(row)", "", ""),
        ("rows += [row]", "", ""),
        ("total = total + loss", "", ""),
        ("y = (a + b)[0] + (c)", "", ""),
        (r"rows = torch.cat([rows, parse('\d')])", "", ""),
    ],
)
def test_statements(text: str, joins: str, store: str) -> None:
    assert joined_by([text + "\n"], 1) == (joins, store)


@pytest.mark.parametrize("line", [4, 5])
def test_statements_over_several_lines(line: int) -> None:
    code = """
    class Store:
        def add(self, row):
            self.rows = torch.cat(
                [self.rows, row],
                dim=0,
            )
            return row
    """
    lines = dedent(code).splitlines(keepends=True)
    assert joined_by(lines, line) == ("torch.cat", "self.rows")
    assert joined_by(lines, 8) == ("", "")
    assert joined_by(lines, 99) == ("", "")


def test_a_call_within_a_longer_statement() -> None:
    code = """
    for row in rows:
        self.rows = normalised(
            torch.cat([self.rows, row]),
        )
    """
    assert joined_by(dedent(code).splitlines(keepends=True), 4) == ("torch.cat", "self.rows")
