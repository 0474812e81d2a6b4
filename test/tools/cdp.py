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

    def click_slider(self, number: int, share: float) -> None:
        """Clicks on the track of a slider, `share` of its length from the left."""
        place = self.evaluate(
            f"(() => {{ const t = document.querySelectorAll('.mantine-Slider-trackContainer')[{number}];"
            "t.scrollIntoView(); const r = t.getBoundingClientRect();"
            f"return {{x: r.x + r.width * {share}, y: r.y + r.height / 2}}; }})()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def _place(self, label: str) -> dict[str, float]:
        return self.evaluate(
            "(() => { const b = [...document.querySelectorAll('button')].find("
            f"b => b.innerText.trim() === {json.dumps(label)});"
            "b.scrollIntoView(); const r = b.getBoundingClientRect();"
            "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )

    def has_button(self, label: str) -> bool:
        script = (
            f"[...document.querySelectorAll('button')].some(b => b.innerText.trim() === {json.dumps(label)})"
        )
        return bool(self.evaluate(script))

    def press(self, label: str) -> None:
        self.call(
            "Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **self._place(label)
        )

    def release(self, label: str) -> None:
        self.call(
            "Input.dispatchMouseEvent",
            type="mouseReleased",
            button="left",
            clickCount=1,
            **self._place(label),
        )

    def click(self, label: str) -> None:
        self.press(label)
        self.release(label)

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data
