"""A headless Chromium, controlled by its DevTools protocol over a pipe; only the browser needs to be installed."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.requirements import require_chromium

TIMEOUT = 60.0  # seconds to wait for an answer
FLAGS = (
    "--headless",
    "--no-sandbox",  # the sandbox does not work as root; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--mute-audio",
    "--disable-renderer-backgrounding",  # render as if the tab were visible
    "--remote-debugging-pipe",
    "about:blank",  # the default start page loads slowly
)


class Chromium:
    """A browser with one tab."""

    def __init__(self, process: subprocess.Popen[bytes], reads: int, writes: int, watched: bool) -> None:
        self.process, self._reads, self._writes = process, reads, writes
        self._received, self._number, self._session = b"", 0, ""
        self._scripted = True
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network") if watched else ():
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._writes, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reads], [], [], TIMEOUT)
            assert ready, f"no answer from Chromium in {TIMEOUT:.0f} s"
            part = os.read(self._reads, 1 << 20)
            assert part, "Chromium has gone"
            self._received += part
        line, self._received = self._received.split(b"\0", 1)
        return dict(json.loads(line))

    # -- User actions

    def size(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, kind: str = "", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def scripts(self, allowed: bool) -> None:
        self._scripted = allowed
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, page: Path) -> float:
        """Load a page and return the seconds until the first screen is drawn."""
        self.events.clear()
        begun = time.perf_counter()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete'")
        if self._scripted:  # without scripts there is no callback
            self.value("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.perf_counter() - begun

    def value(self, script: str) -> Any:
        """Return the value of an expression; await it if it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, script: str) -> None:
        end = time.monotonic() + TIMEOUT
        while not self.value(script):
            assert time.monotonic() < end, f"still not true after {TIMEOUT:.0f} s: {script}"
            time.sleep(0.01)

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click on an element with the mouse; nothing may cover it."""
        at = self.value(
            f"""(() => {{
              const one = document.querySelector({json.dumps(selector)});
              one.scrollIntoView({{block: "center", behavior: "instant"}});
              const box = one.getBoundingClientRect();
              const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
              const top = document.elementFromPoint(x, y);
              return {{x, y, hit: top === one || one.contains(top)}};
            }})()"""
        )
        assert at["hit"], f"{selector} is covered by something else"
        self.point(at["x"], at["y"])
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at["x"], y=at["y"], button="left", clickCount=1)

    # -- What the page shows

    def complaints(self) -> list[str]:
        """Return all warnings and errors of the console."""
        self.value("0")  # wait for pending events
        found = []
        for event in self.events:
            about = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(str([one.get("value", one.get("description")) for one in about["args"]]))
        return found

    def requests(self) -> list[str]:
        self.value("0")
        return [one["params"]["request"]["url"] for one in self.events if one["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))


@contextmanager
def chromium(watched: bool = True) -> Iterator[Chromium]:
    """Start a browser; without `watched` it records no complaints and requests, and runs at full speed."""
    program = require_chromium()
    orders, answers = os.pipe(), os.pipe()
    # The protocol uses the file descriptors 3 and 4, which may be in use here, so the pipes move to free ones first.
    reads, writes = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (orders[0], answers[1]))

    def connect() -> None:
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=connect,
        )
        for one in (orders[0], answers[1], reads, writes):
            os.close(one)
        try:
            yield Chromium(process, answers[0], orders[1], watched)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for one in (orders[1], answers[0]):
                os.close(one)
