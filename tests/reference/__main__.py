"""Write the pages of the reference: ``make reference``."""

from __future__ import annotations

from tests.reference.reference_pages import FOLDER, build_reference


def main() -> None:
    pages = build_reference().pages
    for file in {*FOLDER.rglob("*.md")} - {FOLDER / name for name in pages}:
        file.unlink()
    for name, text in pages.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
