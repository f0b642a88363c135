"""Where a step's time goes, what a machine can give, and how training goes: facts, no advice."""
