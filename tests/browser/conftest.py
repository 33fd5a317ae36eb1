"""Debian's Chromium, looking at pages as a person does on a phone or on a desk."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.server import ServerProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

_MEASURE = """
document.querySelectorAll('details').forEach(part => part.open = true);
const shown = [...document.querySelectorAll('svg, img')].filter(drawing => drawing.checkVisibility());
return [document.documentElement.scrollWidth, shown.map(drawing => {
  const box = drawing.getBoundingClientRect(), loaded = drawing.tagName != 'IMG' || drawing.naturalWidth > 0;
  return [loaded, box.left, box.right, box.width, box.height];
})]
"""


class Drawing(NamedTuple):
    """A figure or picture that is shown; where it is, in pixels of the page."""

    loaded: bool
    left: float
    right: float
    width: float
    height: float


class Browser:
    """A Chromium without a past, which finds no other hosts than 127.0.0.1 and 127.0.0.2, another site to it."""

    def __init__(self, driver: Chrome, folder: Path) -> None:
        self.driver, self._folder = driver, folder

    def resize(self, width: int) -> None:
        """Make the screen that wide, in pixels. On a phone's the page may say how wide it wants to be, and has to."""
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open(self, address: str, text: str) -> None:
        self.driver.get(address)
        self.wait_for(text)

    def wait_for(self, text: str) -> None:
        """Return when the page says so."""
        read = "return document.readyState == 'complete' ? document.body.innerText : ''"
        wait_until(lambda: text in self.driver.execute_script(read), f"the page says {text!r}")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def measure(self, name: str) -> tuple[int, list[Drawing]]:
        """Open all details of the page; return how wide it is, more than the screen where it scrolls sideways, and what
        is drawn on it. A picture of the whole page is kept under that name."""
        width, drawings = self.driver.execute_script(_MEASURE)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        (self._folder / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))
        return width, [Drawing(*drawing) for drawing in drawings]

    def read_console(self) -> list[str]:
        """Return the warnings and errors since the last time. The browser's advice (DEBUG) is none of them."""
        return [entry["message"] for entry in self._read_log("browser") if entry["level"] in {"WARNING", "SEVERE"}]

    def list_hosts(self) -> set[str]:
        """Return the hosts of all requests since the last time, as ``http://127.0.0.1:80``."""
        events = [json.loads(entry["message"])["message"] for entry in self._read_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {
            "{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in urls if not url.startswith(("chrome:", "data:"))
        }

    def _read_log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.execute("getLog", {"type": kind})["value"]
        return entries


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip(
            "the programs chromium and chromedriver are not installed: apt-get install chromium chromium-driver"
        )
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for word in (
        "headless=new",
        "no-sandbox",  # it takes privileges that containers lack, and refuses root
        "disable-dev-shm-usage",
        "hide-scrollbars",  # which would take part of the width
        "no-proxy-server",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE 127.0.0.2",
        f"user-data-dir={tmp_path / 'chromium'}",
    ):
        options.add_argument(word)
    driver = Chrome(options, Service(chromedriver, log_output=str(tmp_path / "chromedriver.log")))
    try:
        yield Browser(driver, tmp_path)
    finally:
        driver.quit()


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()
