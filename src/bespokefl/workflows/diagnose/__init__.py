"""Predict, before long training, whether federating helps each client, with whom, and by which method.

api             `bespokefl.diagnose`
result          `Diagnosis`: figures, sentences and the recommended method
similarity      variances and groups of clients, from short fits
heterogeneity   the kinds of difference: label skew, size disparity, feature shift, concept shift
"""
