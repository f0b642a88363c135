from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.faults import FAULTS, Eyes
from stepladder.records.findings import Outcome, Severity
from stepladder.records.watch import WatchReport
from stepladder.watching.contract import Detector, Unseen
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.ranks.detectors import RANK_DETECTORS
from stepladder.watching.report import findings_of
from stepladder.watching.seen.seen import Seen

Watched = Callable[..., WatchReport]
Snippets = dict[str, tuple[str, str]]
OVER_RANKS = {detector.name for detector in RANK_DETECTORS}


@pytest.fixture(scope="module")
def sound_ones() -> dict[str, WatchReport]:
    """Reports of sound programs, each watched once, as several detectors share most of them."""
    return {}


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
@pytest.mark.filterwarnings("ignore")
def test_a_detector_finds_its_own_example_and_not_the_sound_one(
    detector: Detector, watched: Watched, snippets: Snippets, sound_ones: dict[str, WatchReport]
) -> None:
    broken, sound = snippets[detector.name]
    found = {finding.check: finding for finding in watched(broken).findings}[detector.name]
    assert found.fault == detector.name, found.evidence
    if detector.severity is not Severity.INFO:
        assert found.is_alarm
    assert found.fix
    if sound not in sound_ones:
        sound_ones[sound] = watched(sound)
    report = sound_ones[sound]
    assert report.watcher_error is None
    quiet = {finding.check: finding for finding in report.findings}[detector.name]
    assert quiet.fault is None, quiet.evidence
    assert quiet.outcome is Outcome.PASSED, quiet.evidence
    assert not report.alarms, report.alarms


def test_an_alarm_names_the_line_of_the_script(watched: Watched, snippets: Snippets) -> None:
    broken, _ = snippets["missing_zero_grad"]
    (alarm,) = watched(broken).alarms
    line = broken.splitlines().index("        optimizer.step()") + 1
    assert alarm.where == f"snippet.py:{line}"


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_a_detector_that_saw_nothing_says_so(detector: Detector) -> None:
    answer = detector.look(Seen())
    assert isinstance(answer, Unseen)
    assert answer.reason


def test_detectors_are_the_faults_that_watching_can_find() -> None:
    names = [fault.name for fault in FAULTS if Eyes.WATCH in fault.eyes]
    assert [detector.name for detector in DETECTORS] == [n for n in names if n not in OVER_RANKS]


def test_a_detector_that_fails_could_not_run() -> None:
    def fails(seen: Seen) -> Unseen:
        raise ZeroDivisionError("as planned")

    broken = Detector(name="none", severity=Severity.ERROR, source="", look=fails)
    (finding,) = findings_of(Seen(), [broken])
    assert finding.outcome is Outcome.COULD_NOT_RUN
    assert "as planned" in finding.evidence
