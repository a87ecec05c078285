"""A node: one machine with the data of one or many clients.

node                answers the server's requests
client_state_store  stores the states of its clients and its last replies
replies             what nodes send, checked against one description
score_policy        which scores a node gives away
score_ledger        counts what was answered, rounds scores
"""
