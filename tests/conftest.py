"""Settings of all tests: one thread, reproducible examples, default signal handlers, and no skips in CI."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: its threads would compete for the cores
import signal
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, settings

# If a shell starts pytest in the background, pytest and its children ignore these signals. Restore the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# No deadline, which would fail on slow machines. CI uses the same examples in every run.
settings.register_profile("bespoke", deadline=None, derandomize=CI, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bespoke")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute sums in a fixed order, without competing threads."""
    torch.set_num_threads(1)


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI, turn a skipped test or an expected failure into a failure."""
    if not (CI and report.skipped):
        return
    if hasattr(report, "wasxfail"):
        reason = f"expected to fail: {report.wasxfail}"
        del report.wasxfail  # pytest does not count a report with this attribute as failed
    else:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"In CI no test may be skipped or expected to fail. {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield  # a module can skip itself while it is imported
    fail_if_skipped(report)
    return report
