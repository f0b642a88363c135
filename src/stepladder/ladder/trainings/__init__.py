"""Full trainings for trials: without a run folder, each done once."""
