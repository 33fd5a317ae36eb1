"""Secrets of applications in actions: the same is masked in a record and in its stored text."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from scanflow.agent.agent_records import Action
from scanflow.text.masking import Masker
from scanflow_server.response_masking import build_text_mask, mask_action
from tests.unit.server.server_rows import make_action_row

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=8, max_size=12)
TOKEN = "scanflow_" + 22 * "a"
"""As tokens of a server are."""


def store(action: Action) -> str:
    """Return the text of an action as a store keeps it."""
    return json.dumps(action.model_dump(mode="json"))


def show(action: Action, masker: Masker) -> Action:
    text = build_text_mask(lambda _app, _team: masker)(action.intent.app, action.intent.team, store(action))
    return Action.model_validate_json(text)


@given(secret=SECRETS, text=TEXTS, occurs=st.booleans(), arguments=st.dictionaries(TEXTS, TEXTS, max_size=2))
@example(secret="passwört-1234", text="", occurs=True, arguments={})
@example(secret='a"quoted\\one', text=" ", occurs=True, arguments={})
@example(secret="alpha-bravo-delta", text="", occurs=False, arguments={"password": "hunter2-hunter2"})
@example(secret="alpha-bravo-delta", text=f"{TOKEN} ", occurs=False, arguments={})
@example(secret="alpha-bravo-delta", text="https://ada:hunter2@host/", occurs=False, arguments={})
@example(secret="alpha-bravo-delta", text="https://host/?a=b", occurs=False, arguments={})
def test_the_text_of_an_action_is_mmechanism_its_record_is(
    secret: str, text: str, occurs: bool, arguments: dict[str, Any]
) -> None:
    row, masker = make_action_row("a1"), Masker.from_values([secret])
    text = f"{text}{secret}{text}" if occurs else text
    action = row.action.model_copy(
        update={
            "intent": row.action.intent.model_copy(update={"arguments": {**arguments, "text": text}}),
            "decision": row.action.decision.model_copy(update={"reason": text}),
            "result": [text],
            "error": text,
        }
    )
    shown = show(action, masker)
    assert shown == mask_action(action, lambda _app, _team: masker)[0]
    assert TOKEN not in store(shown)
