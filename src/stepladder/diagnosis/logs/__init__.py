"""Readers of logs: Keras, Lightning, Hugging Face, TensorBoard, MLflow, CSV, JSON, run folders."""
