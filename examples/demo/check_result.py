"""Print the results of the demo; fail if an accuracy is lower than expected."""

import json
import sys
from pathlib import Path

from stepladder.ladder.summary.climb_summary import headline_words
from stepladder.ladder.summary.wording import gain
from stepladder.records.climb import ClimbSummary
from stepladder.records.from_json import from_json

MIN_ACCURACY = 0.72

first, run = map(Path, sys.argv[1:])
summary, trained = (json.loads((path / "summary.json").read_text()) for path in (run, first))
climb = from_json(ClimbSummary, json.loads((run / "climb.json").read_text()))
accuracy, num_test = trained["test_accuracy"], trained["num_test"]
over = climb.over_default
print(f"first training: test accuracy {accuracy:.1%} on {num_test} pictures")
print(f"after the climb: test accuracy {summary['test_accuracy']:.1%}")
faster = f"speed-up by the climb: {headline_words(climb)}"
print(faster if over is None else f"{faster}, about {gain(over)} against `train` by default")
print(f"reports: {first / 'report.html'}, {run / 'report.html'}")
print(f"next: stepladder predict {run} YOUR_PICTURES")
if min(summary["test_accuracy"], trained["test_accuracy"]) < MIN_ACCURACY:
    sys.exit(f"below {MIN_ACCURACY:.0%}: something is wrong with this installation")
