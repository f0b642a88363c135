"""Run folders opened again: curves, state and machine use."""
