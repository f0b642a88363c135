"""Readers of folders: TensorBoard, MLflow, run folders, and what lies beside them."""
