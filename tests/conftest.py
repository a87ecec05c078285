"""Settings of all tests: one thread, reproducible examples, default signal handlers, and no skips in CI."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: its threads would compete for the cores
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's name for: stay on the loopback interface
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# If a shell starts pytest in the background, pytest and its children ignore these signals. Restore the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

HERE = Path(__file__).parent
CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# No deadline, which would fail on slow machines. CI uses the same examples in every run.
settings.register_profile("bespoke", deadline=None, derandomize=CI, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bespoke")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute sums in a fixed order, without competing threads."""
    torch.set_num_threads(1)


# They start first, so that at the end no process waits long for the other one; and their fixtures are made once.
LONG = ("workflows/deploy/test_processes.py", "test_docs.py", "faults/", "workflows/compare/", "evidence/studies/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests by module: the longest first, then all that have slow tests."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def position(item: pytest.Item) -> int:
        path = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        long = [at for at, start in enumerate(LONG) if path.startswith(start)]
        return long[0] if long and item.path in slow else len(LONG) + (item.path not in slow)

    items.sort(key=position)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m alone`, import only modules that have such tests."""
    if config.option.markexpr != "alone" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


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
