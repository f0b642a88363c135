"""The public functions, which the command line calls too.

Options have the same dotted names as in YAML: `train(store="store", **{"batch.lr": 0.01})`.
"""
