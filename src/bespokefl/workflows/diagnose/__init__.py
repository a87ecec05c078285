"""Predict, before long training, whether federating helps each client, with whom, and by which method.

api             `bespokefl.diagnose`
result          `Diagnosis`: all figures
trials          short trainings that compare federated methods with Local on held-out data
recommendation  the recommended method
sentences       a diagnosis in words
similarity      variances and groups of clients, from short fits
heterogeneity   the kinds of difference: label skew, size disparity, feature shift, concept shift
"""
