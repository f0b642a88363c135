"""Tasks: data, model, loss and metrics of a user."""

from stepladder.task.contract import Metrics, Task

__all__ = ["Metrics", "Task"]
