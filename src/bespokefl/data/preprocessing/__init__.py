"""Preprocessing fitted on training data only: scaling, imputation and vocabularies.

fit           `prepare`: fits the preprocessing and applies it to clients
transform     `Preparation`: the fitted preprocessing, applied to other examples
feature_sums  sums of features, the only statistics that a client shares
"""
