"""Personal models for clients that did not take part in training.

personalize   `bespokefl.personalize`: train the models of newcomers from a finished run
trainer       the computation: the method's own rule, and plain fine-tuning for comparison
result        `Newcomers`: models and scores, in memory and on disk
predict       predictions of a client's model for new examples
"""
