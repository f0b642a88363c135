"""Is the job sound? One function a check; each fires on its own broken example."""
