"""The vocabulary of federated learning on which all other packages build: rows, tasks, data of cohorts, methods.

rows                weights of clients as a matrix
task, nn/           a module and a loss as functions of rows
client_index        the examples of each client
cohort_data         the data of a cohort, in batches
local_sgd           local training
descend             the former name of `local_sgd`
blocks/             columns by what they belong to; any method with some of them kept at the clients
work                how much a client computes
method              the interface of a method
callback            the interface of a callback, and what its events carry
uploads             declarations of what a client uploads
user_input/         what users write: hyper-parameters, calls, "module:function", names of plug-ins
scores/             F1, AUC, calibration, RMSE and others of many models at once
rng                 random generators by key
errors              errors that users can fix
system/             atomic files and locks; available memory
"""
