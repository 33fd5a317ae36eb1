"""The public API's types: `make mypy` finds in ``public_api.py`` what is wrong, and each ignore that nothing needs."""

from __future__ import annotations

import re
from pathlib import Path

IGNORED = re.compile(r"# type: ignore\[[a-z-]+\](?=  # .)")


def test_what_the_public_api_refuses_is_ignored_by_code_and_with_the_reason() -> None:
    text = Path(__file__).with_name("public_api.py").read_text(encoding="utf-8")
    ignores = IGNORED.findall(text)
    assert len(ignores) >= 15
    assert text.count("type: ignore") == len(ignores), "An ignore names its code and its reason."
