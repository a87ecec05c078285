"""What holds for every test: one thread, reproducible examples, usual signals, and in CI no skips."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: its threads would fight over two cores
import signal
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, settings

# A shell that starts pytest in the background has it, and all that it starts, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# A time limit would make slow machines fail. In CI the same examples every time, elsewhere new ones.
settings.register_profile("bespoke", deadline=None, derandomize=CI, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bespoke")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums in a fixed order, and no threads in each other's way."""
    torch.set_num_threads(1)


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI a test that did not run, or may fail, has failed."""
    if not (CI and report.skipped):
        return
    if hasattr(report, "wasxfail"):
        reason = f"expected to fail: {report.wasxfail}"
        del report.wasxfail  # pytest counts no failure that carries it
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
    report = yield  # a whole module can skip itself while it is imported
    fail_if_skipped(report)
    return report
