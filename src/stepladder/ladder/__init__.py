"""Trial, verdict, climb: a rung is kept only if it paid."""
