"""Closed forms and bounds of the papers, as plain functions: arrays in, arrays out."""

from bespokefl.theory import bounds, two_level

__all__ = ["bounds", "two_level"]
