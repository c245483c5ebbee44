"""Headless Chromium for the tests, spoken to over its debugging pipe: no driver, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page in one browser. `errors` holds what went to its console as a warning or worse, and uncaught errors."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()

        def own_pipes():  # the browser reads from 3 and writes to 4
            ends = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [
                CHROMIUM,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
                *("--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"),
                f"--user-data-dir={self._profile.name}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=own_pipes,
            close_fds=False,
        )
        os.close(to_browser), os.close(from_browser)
        self._buffer, self._last, self._session, self.errors, self._events = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, page: Path | str, *, scheme="light", width=1280, height=900):
        self.errors, self._events = [], []
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._note(self._read())
        return self

    def js(self, expression):
        """The value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key):
        typed = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **typed)

    def move_to(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        self.move_to(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, height=None, scale=1):
        """The whole page, or its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": scale}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def close(self):
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._send), os.close(self._receive)
        self._profile.cleanup()

    def _read(self):
        end = time.monotonic() + 60
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 16)
            if not part or time.monotonic() > end:
                raise RuntimeError("the browser went away")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        self._events.append(event.get("method"))
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "uncaught"))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.errors.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error", "assert"):
            self.errors.append(str(params["args"]))
