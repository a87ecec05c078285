"""Choose hyper-parameters on validation data."""
