"""Does a recipe learn as well: folds, paired comparisons, remedies."""
