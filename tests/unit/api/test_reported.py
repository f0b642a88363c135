"""What takes seconds is named, in a command, in Python and in a notebook."""

from __future__ import annotations

import io

import pytest

from stepladder.api import call
from stepladder.api.call import reported
from stepladder.machine import activity
from stepladder.machine.activity import Heartbeat, report
from stepladder.training.output.display import PlainDisplay


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    monkeypatch.setattr(call, "default_display", lambda: PlainDisplay(out))
    return out


def test_python_has_a_display_while_a_function_works(
    shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "FIRST_S", 0.0)
    monkeypatch.setattr(activity, "_TICK_S", 0.001)
    with reported("exporting the model"):
        for _ in range(1000):
            if "exporting the model, " in shown.getvalue():
                break
            activity.Event().wait(0.01)
    assert "exporting the model, " in shown.getvalue()


def test_a_command_keeps_its_own_way_to_report(shown: io.StringIO) -> None:
    with Heartbeat(None), reported("exporting the model"):
        assert report().what.endswith("exporting the model")
    assert not shown.getvalue()
