"""What people do with the library: each task is a package.

run         train one method on one federation
tune        choose hyper-parameters on validation data
compare     compare methods over several seeds
diagnose    predict whether federating helps, before long training
newcomers   personal models for clients that did not take part in training
deploy      runs over several machines
export      write models to files that other programs read
results     the result of a run, in memory and on disk
"""
