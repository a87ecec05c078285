"""The transport of a simulation on a Ray cluster: nodes hold the data of clients, the driver their states.

transport   sends the jobs of a round to the cluster
pool        workers on all nodes: which does which job, and what happens when one is lost
worker      what runs in a worker, on a node
placement   which node holds the data of which clients
connection  Ray: connect, start workers, compare versions; the only module that imports it
"""
