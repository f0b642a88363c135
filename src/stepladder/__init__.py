"""Scale deep-learning training in the right order, with proof."""

__version__ = "0.1.0"
