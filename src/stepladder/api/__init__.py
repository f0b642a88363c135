"""The few public functions: what the command line and Python both call.

Options are given as in YAML, by their dotted names: `train(store="store", **{"batch.lr": 0.01})`.
"""
