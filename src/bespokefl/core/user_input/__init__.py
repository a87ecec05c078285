"""What users write, on the command line, in configuration files and in Python.

spec              calls, functions of theirs ("module:function") and typed values
hyper_parameters  types and limits of hyper-parameters
plugins           methods, models and splits of other packages
"""
