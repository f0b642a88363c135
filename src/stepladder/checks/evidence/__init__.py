"""What several checks measure once: samples, features, gradients, short trainings."""
