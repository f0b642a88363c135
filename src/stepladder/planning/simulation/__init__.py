"""Simulations, for what formulas cannot say."""
