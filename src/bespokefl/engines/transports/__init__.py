"""Transports carry messages to clients and bring their uploads back.

protocol   what every transport offers to the round loop, and what passes between them
local      the transport of a simulation: this process or worker processes
jobs       what this process, worker processes and a cluster compute alike
processes  worker processes that answer jobs
wire       named rows, tensors and numbers as bytes
cluster/   the transport of a simulation on a Ray cluster
flower/    the transport of a deployment
"""
