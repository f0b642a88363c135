"""Files that will be wanted, fetched in that order by a few threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from stepladder.records import ShardInfo


class FetchAhead:
    """Fetches what is expected. Threads live while there is something to do.

    Args:
        fetch: gets one file; False: there is no room for it now.
        num_threads: files under way at once.
    """

    def __init__(self, fetch: Callable[[ShardInfo], bool], *, num_threads: int) -> None:
        self._fetch = fetch
        self._num_threads = num_threads
        self._begin()

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Fetch these next, in this order, and nothing that was expected before."""
        self._check_process()
        with self._changed:
            self._queue.clear()
            self._queue.extend(info for info in infos if info.name not in self._under_way)
        self.go_on()

    def go_on(self) -> None:
        """Try again where there was no room."""
        self._check_process()
        with self._changed:
            num_new = min(self._num_threads - self._num_alive, len(self._queue))
            if self._is_closed or num_new <= 0:
                return
            self._num_alive += num_new
        for _ in range(num_new):
            threading.Thread(target=self._work, name="stepladder-ahead", daemon=True).start()

    def claim(self, info: ShardInfo) -> bool:
        """Leave a file to the caller, who wants it now; waits if it is under way.

        Returns:
            Whether it was under way.

        Raises:
            Exception: what its fetching came to, if it failed meanwhile.
        """
        self._check_process()
        with self._changed:
            others = [other for other in self._queue if other.name != info.name]
            self._queue.clear()
            self._queue.extend(others)
            if info.name not in self._under_way:
                return False
            failures = self._under_way[info.name]
            self._changed.wait_for(lambda: self._under_way.get(info.name) is not failures)
        if failures:
            raise failures[0]
        return True

    def close(self) -> None:
        """Fetch no more."""
        self._check_process()
        with self._changed:
            self._is_closed = True
            self._queue.clear()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[ShardInfo] = deque()
        self._under_way: dict[str, list[Exception]] = {}  # by name, with what it came to
        self._num_alive = 0
        self._is_closed = False

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a fork has none of our threads
            self._begin()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._num_alive -= 1
                    return
                info = self._queue.popleft()
                failures = self._under_way[info.name] = []
            is_room = True
            try:
                is_room = self._fetch(info)
            except Exception as error:  # told to who waits; else tried again when it is wanted
                failures.append(error)
            with self._changed:
                del self._under_way[info.name]
                self._changed.notify_all()
                if not is_room:
                    self._queue.appendleft(info)
                    self._num_alive -= 1
                    return
