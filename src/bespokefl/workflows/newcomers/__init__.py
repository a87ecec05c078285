"""Personal models for clients that did not take part in training."""
