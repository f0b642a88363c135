"""From a config to the parts of a run: folder, lock, model, data, session."""
