"""Tables of web addresses: the printed command downloads the pictures, and reads them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

NUM = 6


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve pictures from this machine, all but the last one."""
    folder = tmp_path_factory.mktemp("site") / "so" / "deep"  # that no table finds it
    folder.mkdir(parents=True)
    for number in range(NUM - 1):
        (folder / f"{number}.jpg").write_bytes(b"x%d" % number)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refused(source: Path, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=source, **options))
    return caught.value


@pytest.mark.parametrize("name", ["shoes.csv", "my shoes.jsonl"])
@pytest.mark.parametrize("column", ["image_url", "path"])
def test_the_printed_command_downloads_the_pictures(
    tmp_path: Path, site: str, name: str, column: str
) -> None:
    table = tmp_path / "data" / name
    table.parent.mkdir()
    rows = [(str(at), f"{site}/{at}.jpg?w=400", f"kind {at % 2}") for at in range(NUM)]
    if name.endswith(".csv"):
        lines = [f"id,{column},label", *map(",".join, rows)]
    else:
        lines = [json.dumps(dict(zip(("id", column, "label"), row, strict=True))) for row in rows]
    table.write_text("\n".join(lines))
    error = refused(table)
    assert rows[0][1] in error.what
    assert "Nearest" not in error.what
    (command,) = commands_in(error.fix)
    found = typed_listing(command).pictures
    assert [(one.label, (table.parent / one.path).read_bytes()) for one in found] == [
        (f"kind {at % 2}", b"x%d" % at) for at in range(NUM - 1)
    ]


def test_the_column_of_pictures_is_named_among_several_of_addresses(tmp_path: Path) -> None:
    table = tmp_path / "shop.csv"
    row = "https://example.com/item/{0},https://example.com/{0}.png,{1}"
    rows = [row.format(at, "ab"[at % 2]) for at in range(6)]
    table.write_text("\n".join(["page,photo,label", *rows]))
    assert "column 'photo' has their addresses" in refused(table).what


def test_addresses_of_a_bucket_have_no_command_that_would_fail(tmp_path: Path) -> None:
    table = tmp_path / "shop.csv"
    rows = [f"{at},s3://bucket/{at}.jpg,{'ab'[at % 2]}" for at in range(6)]
    table.write_text("\n".join(["id,uri,label", *rows]))
    error = refused(table)
    assert "column 'uri' has their addresses" in error.what
    assert error.fix == "Download the pictures, and write their paths into the table."
