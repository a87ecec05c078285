"""Transports carry messages to clients and bring their uploads back.

protocol   what every transport offers to the round loop, and what passes between them
local      the transport of a simulation: this process or worker processes
processes  worker processes that answer jobs
wire       named rows, tensors and numbers as bytes
flower/    the transport of a deployment
"""
