"""What a user brings."""

from stepladder.task.contract import Metrics, Task

__all__ = ["Metrics", "Task"]
