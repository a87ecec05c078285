"""Scores of many models at once, from their outputs.

confusion   counts by class, for F1, precision and recall
measures    AUC, calibration, RMSE and others
"""
