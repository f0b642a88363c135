"""Trainings that judge a trial: run to their end without a run folder, each done once."""
