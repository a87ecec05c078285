"""Runs a method over many machines: Flower carries the messages, everything else is the same code as in simulation."""
