"""Print the results of the demo; fail if an accuracy is lower than expected."""

import json
import sys
from pathlib import Path

MIN_ACCURACY = 0.72

first, run = map(Path, sys.argv[1:])
summary, trained = (json.loads((path / "summary.json").read_text()) for path in (run, first))
climb = json.loads((run / "climb.json").read_text())
before_s, after_s = climb["baseline"]["total_s"], climb["result"]["total_s"]
accuracy, num_test = trained["test_accuracy"], trained["num_test"]
print(f"first training: test accuracy {accuracy:.1%} on {num_test} pictures")
print(f"after the climb: test accuracy {summary['test_accuracy']:.1%}")
faster = f"{before_s:,.0f} s originally, {after_s:,.1f} s after the climb: {climb['speedup']:,.0f}×"
over = climb["over_default"]
print(faster if over is None else f"{faster} (about {over:.1f}× against `train` by default)")
print(f"reports: {first / 'report.html'}, {run / 'report.html'}")
print(f"next: stepladder predict {run} YOUR_PICTURES")
if min(summary["test_accuracy"], trained["test_accuracy"]) < MIN_ACCURACY:
    sys.exit(f"below {MIN_ACCURACY:.0%}: something is wrong with this installation")
