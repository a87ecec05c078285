"""Runs over several machines: what `bespoke deploy` writes for each of them, and what runs there.

certificates     the authority, the server's certificate, the nodes' keys
demo             a deployment on one machine
init             writes and renews the directory of a deployment
layout           the directory of a deployment and its settings
node             the process of a node
node_models      predictions and exports with the models of a node's clients
processes        starts and ends processes
runs             starts, stops, lists and fetches runs; their locks and status
server/          the process of the server
shared_features  features and labels that the nodes of a run agree on
"""
