"""Preprocessing fitted on training data only: scaling, imputation and vocabularies."""
