"""The clock: two timelines that must add up, and no advice if they do not."""

from __future__ import annotations

import pytest

from stepladder.training.clock import Clock, DeviceTimeline, Phase, Timeline


class FakeTime:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class StreamEvent:
    """A fake CUDA event on a stream with a given time."""

    def __init__(self, stream: FakeTime, host: FakeTime) -> None:
        self.stream, self.host = stream, host

    def record(self) -> None:
        self.at = self.stream.s

    def query(self) -> bool:
        return self.host.s >= self.at

    def synchronize(self) -> None:
        self.host.s = max(self.host.s, self.at)

    def elapsed_time(self, end: StreamEvent) -> float:
        return (end.at - self.at) * 1e3


def test_phases_and_the_rest_add_up_to_the_wall() -> None:
    time = FakeTime()
    clock = Clock(now=time)
    with clock.phase(Phase.FORWARD):
        time.s += 3
    time.s += 1
    with clock.phase(Phase.BACKWARD):
        time.s += 4
    timeline = clock.host()
    assert timeline.phases_s == {"forward": 3, "backward": 4}
    assert timeline.wall_s == 8
    assert timeline.unexplained_s == 1


def test_time_hidden_in_an_unnamed_place_refuses_advice() -> None:
    time = FakeTime()
    clock = Clock(now=time)
    for _ in range(10):
        with clock.phase(Phase.FORWARD):
            time.s += 0.8
        time.s += 0.2  # a fifth of every step, outside of phases
    reason = clock.host().why_no_advice()
    assert reason is not None
    assert "20 %" in reason


def test_a_closed_timeline_carries_advice() -> None:
    time = FakeTime()
    clock = Clock(now=time)
    with clock.phase(Phase.FORWARD):
        time.s += 0.95
    time.s += 0.05
    assert clock.host().why_no_advice() is None


@pytest.mark.parametrize(("named", "refused"), [(1.04, False), (1.06, True)])
def test_phases_that_overlap_refuse_advice_above_105_percent(named: float, refused: bool) -> None:
    timeline = Timeline(wall_s=1.0, phases_s={"forward": named})
    assert (timeline.why_no_advice() is not None) == refused


def test_an_empty_timeline_carries_no_advice() -> None:
    assert Timeline(wall_s=0.0, phases_s={}).why_no_advice() == "no time was measured"


def test_phases_never_nest() -> None:
    clock = Clock()
    with (
        clock.phase(Phase.VALIDATION),
        pytest.raises(RuntimeError, match="inside validation"),
        clock.phase(Phase.FORWARD),
    ):
        pass


def test_a_second_attempt_continues_from_the_first() -> None:
    time = FakeTime()
    clock = Clock(now=time)
    clock.go_on_from(10.0, {"forward": 5.0, "gone": 1.0})
    with clock.phase(Phase.FORWARD):
        time.s += 2
    assert clock.total_s(Phase.FORWARD) == 7
    assert clock.wall_s() == 12


def test_data_wait_is_a_share_of_step_time_only() -> None:
    timeline = Timeline(wall_s=100, phases_s={"data_wait": 1, "forward": 3, "validation": 50})
    assert timeline.data_wait_frac() == 0.25
    assert Timeline(wall_s=1, phases_s={}).data_wait_frac() == 0.0


def test_on_a_device_data_wait_is_the_gap_between_steps_and_nothing_waits() -> None:
    host, stream = FakeTime(), FakeTime()
    device = DeviceTimeline(lambda: StreamEvent(stream, host))
    clock = Clock(device, now=host)
    for _ in range(3):
        with clock.phase(Phase.DATA_WAIT):
            host.s += 5  # the host waits for data; the device continues, and is then idle for 2 s
        stream.s += 2
        with clock.phase(Phase.TO_DEVICE):
            stream.s += 1
        stream.s += 0.5  # a launch gap, outside of phases
        with clock.phase(Phase.FORWARD):
            stream.s += 7
    before = host.s
    partial = clock.truth()
    assert host.s == before  # reading available data does not wait
    assert partial.wall_s <= 31.5
    timeline = device.close()
    assert timeline.phases_s == {"to_device": 3, "forward": 21, "data_wait": 4}
    assert timeline.wall_s == pytest.approx(3 * 8.5 + 2 * 2)
    assert timeline.unexplained_s == pytest.approx(1.5)


@pytest.mark.parametrize("phase", [Phase.LOGGING, Phase.CHECKPOINT, Phase.TEST])
def test_what_a_device_idles_while_the_host_does_something_else_is_not_a_wait_for_data(
    phase: Phase,
) -> None:
    host, stream = FakeTime(), FakeTime()
    device = DeviceTimeline(lambda: StreamEvent(stream, host))
    clock = Clock(device, now=host)
    for _ in range(2):
        stream.s += 2  # waits for data
        with clock.phase(Phase.TO_DEVICE):
            stream.s += 1
        with clock.phase(phase):
            stream.s += 30
    timeline = device.close()
    assert timeline.phases_s == {"to_device": 2, "data_wait": 2}
    assert timeline.wall_s == 4


def test_a_wait_for_data_begins_where_the_timeline_was_closed() -> None:
    host, stream = FakeTime(), FakeTime()
    device = DeviceTimeline(lambda: StreamEvent(stream, host))
    clock = Clock(device, now=host)
    with clock.phase(Phase.FORWARD):
        stream.s += 1
    stream.s += 100  # no training
    before = device.close()
    stream.s += 2
    with clock.phase(Phase.TO_DEVICE):
        stream.s += 1
    after = device.close()
    assert after.wall_s - before.wall_s == 3
    assert after.phases_s == {"forward": 1, "data_wait": 2, "to_device": 1}


def test_the_devices_marks_are_the_hosts_work_in_a_phase() -> None:
    host, stream = FakeTime(), FakeTime()

    class SlowEvent(StreamEvent):
        def record(self) -> None:
            super().record()
            host.s += 1

        def query(self) -> bool:
            host.s += 1
            return super().query()

    clock = Clock(DeviceTimeline(lambda: SlowEvent(stream, host)), now=host)
    for _ in range(3):
        with clock.phase(Phase.FORWARD):
            host.s += 5
    timeline = clock.host()
    assert timeline.wall_s == 3 * (5 + 3)
    assert timeline.unexplained_s == 0


def test_events_are_used_again_once_read() -> None:
    host, stream = FakeTime(), FakeTime()
    made = []

    def make() -> StreamEvent:
        made.append(StreamEvent(stream, host))
        return made[-1]

    clock = Clock(DeviceTimeline(make), now=host)
    for _ in range(100):
        with clock.phase(Phase.FORWARD):
            stream.s += 1
        host.s = stream.s
    assert len(made) <= 6
