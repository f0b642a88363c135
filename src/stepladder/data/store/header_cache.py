"""What the headers of a file's pictures say, remembered in two bytes a row."""

from __future__ import annotations

import threading

import numpy as np

from stepladder.data.decoding.decode import Form

_MAX_FORMS = 1 << 16


class Forms:
    """The forms of rows, as far as they are known. Safe to use from several threads.

    To read a header again costs a tenth of decoding a picture of 299 pixels, and is done while no
    other thread can run Python.
    """

    def __init__(self, num_rows: int) -> None:
        self._numbers = np.zeros(num_rows, dtype=np.uint16)
        self._forms: list[Form | None] = [None]
        self._number_of: dict[Form, int] = {}
        self._lock = threading.Lock()

    def get(self, row: int) -> Form | None:
        """Give the form of a row; None: not known."""
        number: int = self._numbers[row]
        return self._forms[number]

    def add(self, row: int, form: Form) -> Form:
        """Remember the form of a row, and give it back."""
        with self._lock:
            number = self._number_of.get(form, len(self._forms))
            if number == _MAX_FORMS:
                return form
            if number == len(self._forms):
                self._forms.append(form)
                self._number_of[form] = number
        self._numbers[row] = number
        return form
