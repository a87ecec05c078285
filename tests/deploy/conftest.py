"""These tests need Flower, the extra `flower`. Without it they are left out, but never in CI."""

from importlib.util import find_spec

from tests.conftest import CI

if find_spec("flwr") is None and not CI:
    collect_ignore_glob = ["test_*.py"]
