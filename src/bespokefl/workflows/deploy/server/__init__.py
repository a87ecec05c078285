"""The server process of a deployment."""
