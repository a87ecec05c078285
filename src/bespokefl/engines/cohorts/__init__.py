"""How the clients of a round are computed together.

chunks    how a cohort is cut into chunks
stacking  several federations trained as one
features  features of a frozen backbone, computed once
"""
