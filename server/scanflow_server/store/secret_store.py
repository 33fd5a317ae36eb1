"""The maskers of applications' secrets, from the applications and agents that are stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, Connection, Engine, Text, bindparam, cast, literal, select, union_all

from scanflow.text.masking import Masker
from scanflow.text.secret_patterns import may_need_mask
from scanflow_server.store.tables import agents, applications

LoadMasker = Callable[[str, str | None], Masker]
"""Maps an application's name and team (None: any) to its masker."""

_APP: Final[BindParameter[str]] = bindparam("app")
_VERSIONS: Final = union_all(
    select(applications.c.team, applications.c.name, applications.c.updated, applications.c.revision).where(
        applications.c.name == _APP
    ),
    select(agents.c.team, agents.c.name, literal(-1.0), agents.c.generation).where(agents.c.app == _APP),
)
_DOCUMENTS: Final = union_all(
    select(applications.c.team, cast(applications.c.document, Text)).where(applications.c.name == _APP),
    select(agents.c.team, cast(agents.c.document, Text)).where(agents.c.app == _APP, agents.c.document.is_not(None)),
)
"""Built once, as in ``intents``."""

_MAX_CACHED: Final = 256
_CACHES: Final[WeakKeyDictionary[Engine, dict[tuple[object, ...], Masker]]] = WeakKeyDictionary()
"""The maskers of each database, by what they were made from: a document may be large, and its version is not."""


def load_masker(connection: Connection, app: str, team: str | None = None) -> Masker:
    """Return the masker of the stored applications of that name, and of their agents. ``team`` None: of all teams."""
    versions = connection.execute(_VERSIONS, {"app": app}).all()
    own = sorted(tuple(version) for version in versions if team in {None, version[0]})
    cached, key = _CACHES.setdefault(connection.engine, {}), (app, team, *own)
    if (masker := cached.get(key)) is None:
        rows = connection.execute(_DOCUMENTS, {"app": app}).all() if own else ()
        texts = {str(text) for owner, text in rows if team in {None, owner}}
        masker = Masker(*map(json.loads, filter(may_need_mask, texts)))
        if len(cached) >= _MAX_CACHED:
            cached.clear()
        cached[key] = masker
    return masker


def cache_maskers(connection: Connection) -> LoadMasker:
    """Return :func:`load_masker` for one list, for which each application is read once."""
    return cache(lambda app, team: load_masker(connection, app, team))
