"""What reading took: the numbers of a reader, as it counts them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stepladder.data.reading.examples import ReadCost


@dataclass
class ReaderStats:
    """What reading took so far, over all epochs.

    Attributes:
        fetch_s, decode_s: getting and checking bytes, and decoding them; summed over threads. Of a
            source that does both in one, such as a Dataset, all of it is fetch_s.
        copy_s: copying pictures that memory holds into batches; summed over threads.
        wait_s: time that the consumer waited for batches.
        num_bytes: read from where the examples are stored, as they are stored; 0: not known.
        num_read: examples that were read from there.
        num_rows: examples that were given, those that memory holds among them.
    """

    fetch_s: float = 0.0
    decode_s: float = 0.0
    copy_s: float = 0.0
    wait_s: float = 0.0
    num_bytes: int = 0
    num_read: int = 0
    num_rows: int = 0

    @property
    def fetch_example_s(self) -> float | None:
        """Seconds of one thread to fetch an example; None: none was read."""
        return self.fetch_s / self.num_read if self.num_read else None

    @property
    def decode_example_s(self) -> float | None:
        """Seconds of one thread to decode an example; None: none was read."""
        return self.decode_s / self.num_read if self.num_read else None

    @property
    def example_bytes(self) -> float | None:
        """Bytes of a mean example as it is stored; None: not known."""
        return self.num_bytes / self.num_read if self.num_bytes and self.num_read else None

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Bytes a second that one thread gets while it fetches; None: not known."""
        return self.num_bytes / self.fetch_s if self.num_bytes and self.fetch_s > 0 else None

    def wait_frac(self, seconds: float) -> float:
        """Give the share of a time that the consumer waited, in [0, 1]."""
        return min(1.0, self.wait_s / seconds) if seconds > 0 else 0.0

    def add(self, cost: ReadCost) -> None:
        """Add what reading some rows took; how many they are is counted apart."""
        self.fetch_s += cost.fetch_s
        self.decode_s += cost.decode_s
        self.num_bytes += cost.num_bytes

    def since(self, earlier: ReaderStats) -> ReaderStats:
        """Give what came after an earlier look, a copy by `dataclasses.replace`."""
        return ReaderStats(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )
