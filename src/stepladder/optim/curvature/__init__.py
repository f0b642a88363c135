"""The curvature of a loss by layers, as K-FAC needs it: statistics, factors and inverses."""
