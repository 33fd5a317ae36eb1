"""A browser for a test, and a server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, is_installed, open_browser
from tests.nightly import FILES
from tests.server import ServerProcess


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The one Chromium of all tests: starting it takes as long as looking at a page."""
    if not is_installed():
        pytest.skip(
            "the programs chromium and chromedriver are not installed: apt-get install chromium chromium-driver"
        )
    with pytest.MonkeyPatch.context() as patch, open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        patch.setenv("no_proxy", "localhost,127.0.0.1")
        yield opened


@pytest.fixture
def browser(chromium: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Browser:
    """A browser without a past."""
    chromium.forget()
    chromium.folder = _make_picture_folder(request.node.name, tmp_path)
    return chromium


def _make_picture_folder(test: str, otherwise: Path) -> Path:
    """Return the folder for a test's pictures: that of the nightly stage, where there is one."""
    if FILES not in os.environ:
        return otherwise
    folder = Path(os.environ[FILES]) / re.sub(r"[^\w.-]+", "-", test.removeprefix("test_"))[:80].strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()
