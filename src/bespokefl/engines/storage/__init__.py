"""Client states and checkpoints, in memory and on disk."""
