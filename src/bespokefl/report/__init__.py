"""One page for a comparison or a run: tables and figures in a single file that opens without a network."""

from bespokefl.report.page import write

__all__ = ["write"]
