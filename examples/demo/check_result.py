"""Print the result of the climb; fail if the accuracy is lower than expected."""

import json
import sys
from pathlib import Path

MIN_ACCURACY = 0.72

run = Path(sys.argv[1])
summary = json.loads((run / "summary.json").read_text())
accuracy = summary["test_accuracy"]
print(f"test accuracy {accuracy:.1%} on {summary['num_test']} pictures")
climb = json.loads((run / "climb.json").read_text())
before_s, after_s = climb["baseline"]["total_s"], climb["result"]["total_s"]
print(f"{before_s:,.0f} s originally, {after_s:,.1f} s after the climb: {climb['speedup']:,.0f}×")
print(f"report: {run / 'report.html'}")
if accuracy < MIN_ACCURACY:
    sys.exit(f"below {MIN_ACCURACY:.0%}: something is wrong with this installation")
