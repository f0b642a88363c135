"""What curves and logs say: fit, remedies, stages, use of the machine."""
