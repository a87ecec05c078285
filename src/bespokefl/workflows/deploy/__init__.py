"""Runs over several machines: what `bespoke deploy` writes for each of them, and what runs there.

addresses        host:port addresses
certificates     the authority, the server's certificate, the nodes' keys
demo             a deployment on one machine
init             writes and renews the directory of a deployment
layout           the directory of a deployment and its settings
lock             one process at a time works on a run
node/            the process of a node
processes        starts and ends processes
runs             starts, stops, lists and fetches runs
server/          the process of the server
shared_features  features and labels that the nodes of a run agree on
status           the status of a run
"""
