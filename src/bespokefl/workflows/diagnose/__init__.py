"""Estimate before training whether federating helps each client."""
