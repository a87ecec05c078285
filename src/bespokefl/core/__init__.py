"""The vocabulary of federated learning on which all other packages build: rows, tasks, data of cohorts, methods.

rows                weights of clients as a matrix
task, nn            a module and a loss as functions of rows
client_index        the examples of each client
cohort_data         the data of a cohort, in batches
local_sgd           local training
descend             the former name of `local_sgd`
blocks              columns by what they belong to
local_blocks        any method with some columns kept at the clients
work                how much a client computes
method              the interface of a method
callback            the interface of a callback, and what its events carry
uploads             declarations of what a client uploads
hyper_parameters    types and limits of hyper-parameters
plugins             methods, models and splits of other packages
spec                what users write: calls, functions of theirs ("module:function") and typed values
scores              F1, AUC, calibration, RMSE and others of many models at once
rng                 random generators by key
errors              errors that users can fix
files, memory       atomic files and locks; available memory
"""
