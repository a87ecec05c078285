"""Closed forms and bounds from the papers, as plain functions: arrays in, arrays out.

bounds       User-Centric FL's bounds on the excess risk of a client that learns from a weighted mixture of clients
two_level    Self-FL's two-level Gaussian model: optimal estimates, the gain of federating, local steps
"""

from bespokefl.theory import bounds, two_level

__all__ = ["bounds", "two_level"]
