"""Whether a recipe learns as well: folds, paired comparisons, remedies."""
