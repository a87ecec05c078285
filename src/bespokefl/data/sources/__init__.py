"""Where data sets come from: the catalogue, the cache, packages, the Hugging Face hub and synthetic data."""
