"""Who may ask the SuperLink for what: every request is signed, and checked before its body is read.

signing      signs a request: method, path, time, nonce and the hash of its body; verifies signatures
gate         middleware that lets through what the deployment knows, and nothing else
connections  limits of the HTTP server: headers, time-outs, open connections, no trust in forwarded addresses
access       the keys and the secret of a deployment, as its processes learn them
"""
