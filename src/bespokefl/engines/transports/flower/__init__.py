"""Runs a method over many machines: Flower carries the messages, everything else is the same code as in simulation.

server              the round loop over the nodes that a messenger knows
transport           the transport: clients live at nodes
messenger           requests to nodes and their replies, with repeats and time-outs
timeouts            how long the server waits, and for how many clients
run_plan            what the server sends to every node about a run
schema              describes which JSON is valid
records             named values as Flower's records
names               names of runs and nodes
apps                the Flower apps of a deployment
node/               one machine with the data of one or many clients: its states, replies and scores
services/           Flower's processes: SuperLink, SuperExec, server app and supernode
security/           who may ask the SuperLink for what
adapter             all use of Flower beyond its public API
"""
