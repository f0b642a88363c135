"""Run folders opened again: their curves, state and use of the machine."""
