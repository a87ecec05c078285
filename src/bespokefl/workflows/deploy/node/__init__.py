"""The process of a node.

host     the node's data, and how it builds what the server asks for
main     loads the data and answers the server
predict  predictions of a client's own model
"""
