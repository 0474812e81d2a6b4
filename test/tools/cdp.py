"""A few commands of headless Chromium over its debugging protocol: open a page, click, look."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import connect


def chromium() -> str | None:
    """Path of a Chromium, None where there is none."""
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    """One page in a headless browser; ends with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __enter__(self) -> Browser:
        profile = self._folder / "profile"
        options = ["--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
                   "--window-size=1200,800", "--remote-debugging-port=0", f"--user-data-dir={profile}",
                   "--no-first-run", "--disable-extensions", "about:blank"]  # fmt: skip
        log = (self._folder / "chromium.log").open("wb")
        self._process = subprocess.Popen([str(chromium()), *options], stdout=log, stderr=log)
        port_file = profile / "DevToolsActivePort"
        self._until(lambda: port_file.is_file() and "\n" in port_file.read_text(), "Chromium to start")
        port = int(port_file.read_text().split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(item for item in json.load(answer) if item["type"] == "page")
        self._socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @staticmethod
    def _until(done: Any, what: str, cap_s: float = 90.0) -> None:
        end = time.monotonic() + cap_s
        while not done():
            assert time.monotonic() < end, f"waited {cap_s:g} s for {what}"
            time.sleep(0.05)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120.0))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def wait_for_text(self, text: str) -> None:
        script = f"document.body && document.body.innerText.includes({json.dumps(text)})"
        self._until(lambda: self.evaluate(script), f"the text {text!r}")

    def _place(self, find: str, share: float = 0.5) -> dict[str, float]:
        """Where to click on an element, `share` of its width from the left, once it keeps still and is in reach.

        A panel that opens moves its buttons for a moment; a click at the place of a moment ago would miss.
        """
        script = (
            f"(async () => {{ const found = {find}; if (!found) return null;"
            "found.scrollIntoView({block: 'nearest'}); const frame = () => new Promise(requestAnimationFrame);"
            f"const at = () => {{ const r = found.getBoundingClientRect();"
            f"return {{x: r.x + r.width * {share}, y: r.y + r.height / 2}}; }};"
            "const first = at();"
            "for (let i = 0; i < 5; i++) { await frame(); const now = at();"
            "if (now.x !== first.x || now.y !== first.y) return null; }"
            "const top = document.elementFromPoint(first.x, first.y);"
            "return top && (found.contains(top) || top.contains(found)) ? first : null; })()"
        )
        place: dict[str, float] | None = None

        def found() -> bool:
            nonlocal place
            result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
            place = result["result"].get("value")
            return place is not None

        self._until(found, f"{find} to keep still in reach")
        assert place is not None
        return place

    def _mouse(self, kind: str, place: dict[str, float]) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def click_slider(self, number: int, share: float) -> None:
        """Clicks on the track of a slider, `share` of its length from the left."""
        place = self._place(f"document.querySelectorAll('.mantine-Slider-trackContainer')[{number}]", share)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, place)

    def has_button(self, label: str) -> bool:
        script = (
            f"[...document.querySelectorAll('button')].some(b => b.innerText.trim() === {json.dumps(label)})"
        )
        return bool(self.evaluate(script))

    def press(self, label: str) -> None:
        """Presses the mouse on a button and holds it there."""
        self._held = self._place(
            f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() === {json.dumps(label)})"
        )
        self._mouse("mousePressed", self._held)

    def release(self) -> None:
        """Releases the mouse where it was pressed."""
        self._mouse("mouseReleased", self._held)

    def click(self, label: str) -> None:
        self.press(label)
        self.release()

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data
