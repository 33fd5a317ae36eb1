"""Each page of a task does what it says: its commands run in order, and print what it shows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import home_in
from tests.page_examples import (
    PAGES,
    PageRun,
    end_page,
    find_needed_program,
    is_nightly,
    is_shown,
    list_commands,
    read_blocks,
)
from tests.serving import reserve_port

PAGE = """# A page

<!-- nightly -->

```python
# steps/clean.py
print(1)
```

```console
$ scanflow run app.py \\
    --slots 2
succeeded in 0.31 s ...
$ scanflow check missing.py  # exit 2
```

<!-- not run: needs a GPU -->
```console
$ scanflow run gpu.py
```
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, and a home beside it: long ones are printed over several lines."""
    with tempfile.TemporaryDirectory() as parent, home_in(Path(parent)):
        yield Path(parent) / "page"


def run_page(page: Path, folder: Path, cluster: Mapping[str, str] | None = None) -> list[str]:
    """Run a page, and return what differs from what it says."""
    folder.mkdir(exist_ok=True)
    with reserve_port() as port:
        run = PageRun(folder, port, cluster=cluster)
        try:
            run.run(page)
        finally:
            end_page(run)
    assert run.commands
    return run.differences


def mark_page(page: Path) -> Any:
    """Return a page with the marks of what it needs: ``mpicc`` is brought by the nightly run's part for MPI."""
    program = find_needed_program(page)
    needs = [] if program is None else [pytest.mark.skipif(not shutil.which(program), reason=f"{program} is missing")]
    mpi = [pytest.mark.mpi] if program == "mpicc" else []
    return pytest.param(page, id=page.stem, marks=[*needs, *mpi])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [mark_page(page) for page in PAGES if not is_nightly(page)])
def test_a_page_does_what_it_says(page: Path, folder: Path) -> None:
    assert not run_page(page, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [mark_page(page) for page in PAGES if is_nightly(page)])
def test_a_page_that_takes_long_does_what_it_says(page: Path, folder: Path) -> None:
    assert not run_page(page, folder)


def test_a_pages_blocks_are_files_commands_and_what_is_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second, third = read_blocks(PAGE)
    assert (first.language, second.runs, third.runs) == ("python", True, False)
    assert [command for command, _ in list_commands(second.text)] == [
        "scanflow run app.py --slots 2",
        "scanflow check missing.py  # exit 2",
    ]
    assert is_nightly(page)


def test_output_is_compared_but_for_names_durations_and_ports() -> None:
    assert is_shown("succeeded in 0.31 s\nat http://127.0.0.1:1/", "succeeded in 2 min\nat http://127.0.0.1:46700/\n")
    assert is_shown(
        "train = ...\n...\nShow it: scanflow show keen-otter-417", "train = 1\na\nb\nShow it: scanflow show a-b-001"
    )
    assert not is_shown("accuracy 0.97", "accuracy 0.96")
    assert not is_shown("...\nsucceeded", "succeeded\nfailed")


def test_a_command_gets_the_id_that_an_earlier_one_printed(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    written, printed = "0123456789abcdef", "00000000deadbeef"
    page.write_text(
        f"```console\n$ printf 'action %08x%s' 0 deadbeef\naction {written}\n"
        f"$ test {written} = {printed[:8]}'deadbeef'\n```\n"
    )
    assert not run_page(page, tmp_path / "page")


def test_what_is_exported_holds_below_and_a_cluster_has_its_own(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ export FIRST=1 SECOND=2\n$ sleep 600 &\n$ echo $FIRST $SECOND\n1 2\n```\n"
        "<!-- run on a cluster -->\n```console\n$ echo $FIRST $SECOND\n1 3\n$ false\n```\n"
    )
    assert not run_page(page, tmp_path / "without")
    (difference,) = run_page(page, tmp_path / "with", {"FIRST": "1", "SECOND": "3"})
    assert "is to print:\n1 2\n\nand prints:\n1 3" in difference
    page.write_text(page.read_text().replace("\n1 2\n", "\n1 3\n"))
    (difference,) = run_page(page, tmp_path / "again", {"FIRST": "1", "SECOND": "3"})
    assert "false\nended with 1, not 0" in difference


def test_a_page_names_the_program_without_which_it_cannot_be_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n<!-- needs: mpicc -->\n")
    assert find_needed_program(page) == "mpicc"
    assert "mpi" in [mark.name for mark in mark_page(page).marks]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```console\n$ scanflow check nothing.py\n```\n", "ended with 2, not 0"),
        ("```console\n$ echo one\ntwo\n```\n", "is to print:\ntwo\n\nand prints:\none"),
        ("```python\nprint(1)\n```\n```output\n2\n```\n", "is to print:\n2\n\nand prints:\n1"),
    ],
    ids=["exit", "console", "python"],
)
def test_a_page_that_says_what_is_not_so_fails(home: Path, tmp_path: Path, text: str, why: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    (difference,) = run_page(page, tmp_path / "page")
    assert why in difference
