"""Masks the secrets of applications in what leaves the server, whatever the caller's role."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.agent.agent_records import Action
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer.masked_deployer import mask_service
from scanflow.text.masking import Masker
from scanflow.text.secret_patterns import OWN_TOKEN, may_need_mask
from scanflow_server.store.intent_store import MaskAction
from scanflow_server.store.secret_store import LoadMasker

Mask = Callable[[Any], Any]


def mask_action(action: Action, load_masker: LoadMasker) -> tuple[Action, Mask]:
    """Return an action with the secrets of its application and its arguments masked, and what masks other texts of
    it."""
    document = action.model_dump(mode="json")
    mask = _build_action_mask(document, load_masker(action.intent.app, action.intent.team))
    return Action.model_validate(_mask_action_document(document, mask)), mask


def build_text_mask(load_masker: LoadMasker) -> MaskAction:
    """Return what masks the same in a stored action's JSON."""
    return lambda app, team, text: _mask_action_text(text, load_masker(app, team))


def _mask_action_text(text: str, masker: Masker) -> str:
    """Return an action's JSON with its secrets masked; text without a sign of a secret is not parsed."""
    if not may_need_mask(text) and not OWN_TOKEN.occurs_in(text) and not masker.occurs_in(text):
        return text
    document = json.loads(text)
    return json.dumps(_mask_action_document(document, _build_action_mask(document, masker)))


def mask_service_document(document: Mapping[str, Any], masker: Masker) -> dict[str, Any]:
    return mask_service(ServiceRecord.model_validate(document), masker).model_dump(mode="json")


def _build_action_mask(document: Mapping[str, Any], masker: Masker) -> Mask:
    own = Masker(document["intent"]["arguments"], (document.get("inverse") or {}).get("arguments"))
    return lambda value: own.mask(masker.mask(value))


def _mask_action_document(document: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """Return an action's document with its values masked; its names and states stay as they are."""
    intent, decision = document["intent"], document["decision"]
    masked_intent = {**intent, "arguments": mask(intent["arguments"]), "rule": mask(intent.get("rule", ""))}
    if (sample := intent.get("sample")) is not None:
        masked_intent["sample"] = {**sample, "value": mask(sample["value"]), "error": mask(sample.get("error"))}
    masked: dict[str, Any] = {
        **document,
        "intent": masked_intent,
        "decision": {**decision, "reason": mask(decision["reason"])},
        "result": mask(document.get("result")),
        "error": mask(document.get("error")),
        "approved_why": mask(document.get("approved_why", "")),
    }
    if (inverse := document.get("inverse")) is not None:
        masked["inverse"] = {**inverse, "arguments": mask(inverse["arguments"])}
    return masked
