"""Measure speed, memory and deployment overhead on this machine.

Not part of the library's core: only `bespoke bench` and `bespoke deploy overhead` import it.

speed                 rounds of the simulation compared with a plain PyTorch loop
scored                rounds after which all clients are scored, compared with a lean loop
methods               what a round of each method costs besides its gradients
scale                 time and memory of a round as the number of clients grows
growth                cost against clients, parameters and rounds, and its figure
deployment_overhead   seconds of a deployed round, compared with plain Flower
"""
