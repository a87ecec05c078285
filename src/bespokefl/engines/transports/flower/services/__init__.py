"""The processes of a deployment that Flower provides, with signed requests.

superlink    the server's SuperLink, with long polling
superexec    the SuperExec, which starts server apps
app_process  the process of a server app
supernode    a node's connection to the SuperLink
"""
