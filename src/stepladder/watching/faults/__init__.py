"""The detectors, by what they check: pure functions of what was seen."""
