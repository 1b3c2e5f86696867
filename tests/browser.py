"""A headless Chromium, driven over the WebDriver protocol; enough of it for the status page."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

DRIVER, BROWSER = "chromedriver", ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Why there is no browser, or "" where there is one."""
    if not shutil.which(DRIVER):
        return f"no {DRIVER}: apt-get install chromium-driver"
    return "" if _binary() else "no chromium: apt-get install chromium"


def _binary() -> str:
    return next((path for name in BROWSER if (path := shutil.which(name))), "")


@dataclass(slots=True)
class Browser:
    """One window. `session` is the WebDriver session's address."""

    session: str

    def go(self, address: str) -> None:
        """Load a page."""
        self._post("url", url=address)

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a script returns; a promise is waited for."""
        wrapped = (
            f"const done = arguments[arguments.length - 1]; Promise.resolve((function () {{ {script} }}).apply(null, arguments)).then(done)"
        )
        return self._post("execute/async", script=wrapped, args=list(arguments))

    def text(self, selector: str) -> str:
        """What a reader sees of an element."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).innerText"))

    def until(self, selector: str, wanted: str, within_s: float = 20.0) -> float:
        """Wait until an element's text contains `wanted`; returns the seconds it took."""
        started = monotonic()
        while wanted not in self.text(selector):
            if monotonic() - started > within_s:
                raise AssertionError(f"{selector} lacks {wanted!r}: {self.text(selector)}")
            sleep(0.02)
        return monotonic() - started

    def press(self, key: str) -> None:
        """Press and release one key; `key` as WebDriver names it."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def log(self, kind: str) -> list[dict[str, Any]]:
        """`browser`: what the console said since the last look; `performance`: what the network did."""
        found = self._post("se/log", type=kind)
        assert isinstance(found, list)
        return found

    def dark(self, wanted: bool) -> None:
        """Have the page drawn as for a user who prefers dark, or light."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def command(self, name: str, **parameters: object) -> Any:
        """A command of the browser's own protocol."""
        return self._post("goog/cdp/execute", cmd=name, params=parameters)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _post(self, what: str, **body: object) -> Any:
        return post(f"{self.session}/{what}", body)


@contextmanager
def browser() -> Iterator[Browser]:
    """A window of its own, closed at the end."""
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        try:
            assert driver.stdout is not None
            line = next(line for line in driver.stdout if "started successfully" in line)
            base = "http://127.0.0.1:" + line.split()[-1].rstrip(".")
            session = post(f"{base}/session", {"capabilities": {"alwaysMatch": _capabilities()}})
            window = Browser(f"{base}/session/{session['sessionId']}")
            try:
                yield window
            finally:
                urllib.request.urlopen(urllib.request.Request(window.session, method="DELETE")).close()  # noqa: S310
        finally:
            driver.terminate()


def post(address: str, body: object) -> Any:
    """One call of the protocol."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)["value"]


def _capabilities() -> dict[str, object]:
    arguments = ["--headless=new", "--window-size=1280,1600", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses to run as root with it
    return {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": _binary(), "args": arguments},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
