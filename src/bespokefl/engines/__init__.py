"""Engines run a method: the fast simulation, and the plain reference it is measured against."""
