"""`stepladder scaling` takes a list of numbers of devices, and layouts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepladder.cli.main import main


@pytest.mark.parametrize("words", [["--devices", "1,2,4"], ["--devices=4,1"], ["--devices", "4"]])
def test_the_largest_of_a_list_is_the_number_of_devices(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", *words, "--show-config", "--json"]) == 0
    shown: Any = json.loads(capsys.readouterr().out)
    assert "4" in json.dumps(shown["device.count"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "0,2"], "0,2: a number of devices is 1 or more"),
        (["--layouts", "8"], "'8' is not machines x devices"),
        (["--layouts", "2x0"], "'2x0' is not machines x devices"),
    ],
)
def test_what_is_no_number_of_devices_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", *words, "--show-config"]) == 2
    assert said in capsys.readouterr().err
