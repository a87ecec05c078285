"""The result of a run, in memory and on disk."""
