"""A text stream that may vanish under a run."""

from __future__ import annotations

import os
from typing import TextIO


class Outlet:
    """A text stream that may vanish: after a closed pipe or terminal, writing does nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write text; characters that the stream's encoding lacks become `?`."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except (OSError, ValueError):
                self._turn_off()
        return len(text)

    def flush(self) -> None:
        """Hand everything to the system."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._turn_off()

    def line(self, text: str) -> None:
        """Write one line, at once."""
        self.write(text + "\n")
        self.flush()

    def isatty(self) -> bool:
        """Tell whether a terminal is at the other end."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """Give the stream's descriptor, as rich asks for the terminal's size."""
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()

    def _turn_off(self) -> None:
        """Forget the stream; what its buffer still holds must not fail again when Python exits."""
        stream, self._stream = self._stream, None
        try:
            handle = stream.fileno() if stream is not None else -1
            if handle > 2:
                return
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, handle)
            os.close(null)
        except (OSError, ValueError):
            pass
