"""Runs a method over many machines: Flower carries the messages, everything else is the same code as in simulation.

server              the round loop over the nodes that a messenger knows
transport           the transport: clients live at nodes
messenger           requests to nodes and their replies, with repeats and time-outs
timeouts            how long the server waits, and for how many clients
node                one machine with the data of one or many clients
client_state_store  what a node stores: the states of its clients and its last replies
run_plan            what the server sends to every node about a run
node_replies        what nodes send, checked against one description
schema              describes which JSON is valid
score_policy        which scores a node gives away
score_ledger        counts what was answered, rounds scores
records             named values as Flower's records
names               names of runs and nodes
apps                the Flower apps of a deployment
security/           who may ask the SuperLink for what
superlink           Flower's SuperLink, with signed requests and long polling
superexec           Flower's SuperExec, which starts server apps
app_process         the process of a server app
supernode           a node's connection to the SuperLink
adapter             all use of Flower beyond its public API
"""
