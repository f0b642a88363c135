"""What several ranks do together before, during and after training."""
