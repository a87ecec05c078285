"""Neural network modules.

module       inspection of a user's module: its head, unsupported layers
statistics   layers with state, such as the running statistics of batch norm
probe        trials of a module on a few examples
layers       faster layers
pooling      maximum pooling over windows of 2 × 2
convolution  a first convolution together with the pooling after it
losses       losses by name
heads        gradients for several heads on one base
"""
