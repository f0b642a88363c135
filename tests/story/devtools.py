"""Drive headless Chromium through its DevTools protocol, with real mouse events.

The protocol runs over two pipes, so no package is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LOGGED = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


class Tab:
    """An open page.

    Attributes:
        logged: errors and messages of the console.
    """

    def __init__(
        self, chromium: str, page: Path, profile: Path, flags: Sequence[str] = (), *, width: int
    ) -> None:
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        ours = ["--remote-debugging-pipe", f"--window-size={width},900"]
        command = [chromium, *flags, *ours, f"--user-data-dir={profile}", "about:blank"]
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received, self._num_calls = b"", 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)
        os.close(self._to)
        os.close(self._from)

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [event["params"] for event in self._events if event["method"] in _LOGGED]

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._num_calls += 1
        message: dict[str, object] = {"id": self._num_calls, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._num_calls:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def js(self, expression: str) -> Any:
        """Evaluate an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, kind: str, place: tuple[float, float], **more: object) -> None:
        """Move, press or release the mouse."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=place[0], y=place[1], **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the left button."""
        button: Mapping[str, object] = {"button": "left", "clickCount": 1}
        self.mouse("Pressed", start, **button)
        for share in (0.3, 0.7, 1.0):
            at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            self.mouse("Moved", at, buttons=1, **button)
        self.mouse("Released", end, **button)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium has ended"
            self._received += data
        text, self._received = self._received.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(text)
        return answer
