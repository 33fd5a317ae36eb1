"""The model server takes no body of several parts."""

from __future__ import annotations

import pytest

from scanflow_serving.inference_problems import ProblemError, refuse_multipart


@pytest.mark.parametrize("media", ["multipart/form-data; boundary=b", "Multipart/Mixed"])
def test_a_body_of_several_parts_is_refused_with_what_to_send(media: str) -> None:
    with pytest.raises(ProblemError, match=r"Send JSON: content-type: application/json") as refused:
        refuse_multipart(media)
    assert refused.value.status == 415


@pytest.mark.parametrize("media", ["", "application/json", "application/octet-stream"])
def test_other_bodies_are_left_to_their_readers(media: str) -> None:
    refuse_multipart(media)
