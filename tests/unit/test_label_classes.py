"""Labels of a class that the model does not know are named when they are given."""

from __future__ import annotations

from typing import Any

from scanflow_client.label_files import describe_unknown_classes


def label(id: str, given: Any, guess: Any) -> dict[str, Any]:
    return {"id": id, "label": given, "guess": guess}


def test_a_class_that_was_mistyped_is_named_with_its_samples_and_the_likely_one() -> None:
    given = [label("a", "Refused", "Approved"), label("b", "Refussed", "Refused"), label("c", "Refussed", "Refused")]
    (line,) = describe_unknown_classes(given)
    assert line.startswith("! 'Refussed' (of b, c) is no class that the model predicted here: Approved, Refused.")
    assert "Did you mean 'Refused'?" in line


def test_known_classes_and_amounts_are_left_alone() -> None:
    assert describe_unknown_classes([label("a", 1, 0), label("b", 0, 1)]) == []
    assert describe_unknown_classes([label("a", 3.25, 3.5), label("b", 1.5, 2.25)]) == []
    assert describe_unknown_classes([label("a", "odd", ["x"]), label("b", "odd", None)]) == []
