"""Transports carry messages to clients and bring their uploads back."""
