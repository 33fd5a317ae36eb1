"""Debian's Chromium, looking at pages as a person does on a phone or on a desk."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import pytest

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


_CHECK_ACCESS = """
const [rules, done] = arguments;
const options = rules.length ? {runOnly: {type: 'rule', values: rules}} : {};
axe.run(document, {resultTypes: ['violations'], ...options}).then(result => done(result.violations
  .filter(finding => ['serious', 'critical'].includes(finding.impact))
  .map(({id, help, nodes}) => ({id, help, nodes: nodes.slice(0, 5).map(node => node.html.slice(0, 200))}))));
"""


@cache
def _load_axe() -> str:
    """Return the script of axe-core, from the wheel that the stage brings: requirements/browser.txt."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-core is not installed: requirements/install browser .cache/browser brings it")
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")


class Drawing(NamedTuple):
    """A figure or picture that is shown; where it is, in pixels of the page."""

    loaded: bool
    left: float
    right: float
    width: float
    height: float


class Browser:
    """A Chromium, which finds no other hosts than 127.0.0.1 and 127.0.0.2, another site to it."""

    def __init__(self, driver: Chrome, folder: Path) -> None:
        """``folder``: where pictures are kept."""
        self.driver, self.folder = driver, folder
        self._sites: set[str] = set()

    def forget(self) -> None:
        """Be without a past again: an empty tab, of a screen and a zone of its own, no cookie, nothing stored."""
        past = self.driver.window_handles
        self.driver.switch_to.new_window("tab")
        fresh = self.driver.current_window_handle
        for handle in past:
            self.driver.switch_to.window(handle)
            self.driver.get("about:blank")  # a tab that still follows a form's answer may miss that it is closed
            self.driver.close()
        self.driver.switch_to.window(fresh)
        for site in self._sites:
            self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": site, "storageTypes": "all"})
        self._sites.clear()
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        for kind in ("browser", "performance"):
            self._read_log(kind)

    def resize(self, width: int) -> None:
        """Make the screen that wide, in pixels. On a phone's the page may say how wide it wants to be, and has to."""
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def use_scheme(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark`` pages."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def check_access(self, *rules: str) -> list[str]:
        """Return the serious findings of axe-core in the page, each with the elements that it is about; by some of its
        rules alone where they are named."""
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(_load_axe())
        findings = self.driver.execute_async_script(_CHECK_ACCESS, rules)
        return [f"{finding['id']}: {finding['help']}: {finding['nodes']}" for finding in findings]

    def open(self, address: str, text: str) -> None:
        self._sites.add("{0.scheme}://{0.netloc}".format(urlsplit(address)))
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
        (self.folder / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))
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


def is_installed() -> bool:
    return None not in (shutil.which("chromium"), shutil.which("chromedriver"))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a Chromium without a past, whose files are in that folder, and end it."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for word in (
        "headless=new",
        "no-sandbox",  # it takes privileges that containers lack, and refuses root
        "disable-dev-shm-usage",
        "hide-scrollbars",  # which would take part of the width
        "no-proxy-server",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE 127.0.0.2",
        f"user-data-dir={folder / 'chromium'}",
    ):
        options.add_argument(word)
    driver = Chrome(options, Service(shutil.which("chromedriver"), log_output=str(folder / "chromedriver.log")))
    try:
        yield Browser(driver, folder)
    finally:
        driver.quit()
