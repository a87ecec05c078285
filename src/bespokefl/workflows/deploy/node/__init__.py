"""The node process of a deployment."""
