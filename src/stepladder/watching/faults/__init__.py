"""The detectors, by what they look at: pure functions of what was seen."""
