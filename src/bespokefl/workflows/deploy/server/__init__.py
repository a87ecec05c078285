"""The processes of the server.

run         one run, in the server app
supervisor  keeps Flower's processes and the runs alive
"""
