"""Compare methods over seeds on the same clients."""
