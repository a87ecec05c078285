"""Data sets, and how they become clients."""

from bespokefl.data import splits
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load, names

__all__ = ["Clients", "Dataset", "load", "names", "splits"]
