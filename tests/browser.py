"""A headless Chromium that opens a page and answers questions about it, over the DevTools pipe; needs no other library."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of a running Chromium. `complaints` collects the warnings and errors of its console."""

    def __init__(self, orders: int, answers: int) -> None:
        self.orders = os.fdopen(orders, "wb", buffering=0)
        self.answers = os.fdopen(answers, "rb", buffering=0)
        self.rest = b""
        self.count = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        page = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = self.answers.read(1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer. Events that arrive in between are stored."""
        self.count += 1
        order = {"id": self.count, "method": method, "params": parameters}
        self.orders.write(json.dumps(order | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while (message := self.read()).get("id") != self.count:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def open(self, url: str, width: int, dark: bool) -> None:
        """Load the page in a window of that width, under a reader's light or dark mode; returns after its load event."""
        mode = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=mode)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.read())

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Warnings and errors of the console, and uncaught exceptions, since the page was opened."""
        self.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
                found.append(parameters["entry"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error"):
                found.append(str(parameters["args"]))
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
        return found

    def picture(self, path: Path) -> None:
        """Return the whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile. Chromium and the profile are removed at the end."""
    orders_out, orders = os.pipe()
    answers, answers_in = os.pipe()
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$0" "$@" 3<&{orders_out} 4>&{answers_in}', str(CHROMIUM), *options],
        pass_fds=(orders_out, answers_in),
        stderr=subprocess.DEVNULL,
    )
    os.close(orders_out)
    os.close(answers_in)
    try:
        yield Browser(orders, answers)
    finally:
        process.terminate()
        process.wait(20)
