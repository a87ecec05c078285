"""What the claims about Bespoke rest on. It uses the library as any user does, and the library never needs it.

studies      the papers' experiments and our own, computed as cells by `bespoke reproduce`
pages        tables, claims and figures from these cells, written by `bespoke reproduce --table`
benchmarks   speed, memory and deployment overhead, measured by `bespoke bench` and `bespoke deploy overhead`
"""
