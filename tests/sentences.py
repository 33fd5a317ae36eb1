"""Sentences of the product in tests: each is asserted word for word where it is made, and seldom elsewhere.

``python -m tests.sentences`` lists those that are asserted in many files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from tests.grammar import CHECKOUT, parse_modules

TESTS = CHECKOUT / "tests"
MIN_WORDS, MIN_CHARACTERS = 5, 25
"""What is shorter than either is no sentence, but a name, a command or a state."""

MAX_FILES = 2
"""In how many files a sentence is asserted: where it is made, and where a user reads it."""


def list_texts(module: ast.Module) -> Iterator[str]:
    """Yield the texts that assertions and ``match=`` compare with."""
    for node in ast.walk(module):
        match node:
            case ast.Assert(test=compared) | ast.keyword(arg="match", value=compared):
                for text in ast.walk(compared):
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield text.value.replace("\\", "")


def list_sentences(text: str) -> Iterator[str]:
    """Yield each shortest run of words of a text that is as long as a sentence."""
    words = re.findall(r"[\w']+", text)
    for start in range(len(words) - MIN_WORDS + 1):
        for end in range(start + MIN_WORDS, len(words) + 1):
            if len(sentence := " ".join(words[start:end])) >= MIN_CHARACTERS:
                yield sentence
                break


def find_repeated(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the sentences that too many files assert, and those files."""
    files: dict[str, set[str]] = {}
    for path, module in modules.items():
        for text in list_texts(module):
            for sentence in list_sentences(text):
                files.setdefault(sentence, set()).add(path)
    return {sentence: sorted(paths) for sentence, paths in files.items() if len(paths) > MAX_FILES}


if __name__ == "__main__":
    for sentence, paths in find_repeated(parse_modules([TESTS])).items():
        print(f"{sentence!r}: {', '.join(paths)}")
