"""Closed forms and bounds of the papers, as plain functions: arrays in, arrays out."""
