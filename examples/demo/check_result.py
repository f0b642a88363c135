"""Print the demo's test accuracy, and fail if it is below what the defaults must reach."""

import json
import sys
from pathlib import Path

MIN_ACCURACY = 0.72

run = Path(sys.argv[1])
summary = json.loads((run / "summary.json").read_text())
accuracy = summary["test_accuracy"]
print(f"test accuracy {accuracy:.1%} on {summary['num_test']} pictures")
print(f"report: {run / 'report.html'}")
if accuracy < MIN_ACCURACY:
    sys.exit(f"below {MIN_ACCURACY:.0%}: something is wrong with this set-up")
