"""Blocks of columns, such as the head or the normalization layers.

matching  columns by what they belong to
local     any method with some columns kept at the clients
"""
