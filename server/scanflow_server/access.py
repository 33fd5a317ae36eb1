"""Who may do what: a token's role says which actions, its team on whose things. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from scanflow.errors import ForbiddenError
from scanflow.home_token import Role

Permission = Literal["read", "propose", "change", "approve", "administer"]

PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    "viewer": frozenset({"read"}),
    "agent": frozenset({"read", "propose"}),
    "editor": frozenset({"read", "propose", "change", "approve"}),
    "admin": frozenset(get_args(Permission)),
}
"""What each role may do. ``propose``: tell of events, want labels, and send intents for the arbiter to decide on."""

TEAM_KEYS = "team/"
"""What the idempotency keys of teams begin with, and nobody sends."""

_DOING: Mapping[Permission, str] = {
    "read": "read",
    "propose": "send events, intents and samples to label",
    "change": "run, deploy, stop or change anything",
    "approve": "approve, refuse or revert actions",
    "administer": "make, list or revoke tokens",
}


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """Who asks, as the token says."""

    name: str
    role: Role = "viewer"
    team: str | None = None
    """Whose things the token is for. None: those of all teams."""

    def sees(self, team: str) -> bool:
        """Whether what is that team's is there at all for the caller."""
        return self.team is None or self.team == team

    def key(self, key: str | None) -> str | None:
        """Return under what an idempotency key is kept: one team's is never another's."""
        if key is None or self.team is None:
            return key
        return f"{TEAM_KEYS}{hashlib.sha256(f'{self.team}/{key}'.encode()).hexdigest()}"

    def check(self, permission: Permission, team: str | None) -> None:
        """Raise ForbiddenError where the caller may not do it to what is that team's; see :func:`may`."""
        if (reason := may(self, permission, team)) is not None:
            raise ForbiddenError(reason)


def may(caller: TokenHolder, permission: Permission, team: str | None) -> str | None:
    """Return why a caller may not do something to what is of ``team``, in words that say who can; None: it may.

    ``team`` None: it is of all teams, as the server itself is. Of another team's things no more is said than that they
    are not the caller's.
    """
    if permission not in PERMISSIONS[caller.role]:
        least = next(role for role in ("viewer", "editor", "admin") if permission in PERMISSIONS[role])
        given = "" if caller.team is None else f" --team {caller.team}"
        return (
            f"The token {caller.name!r} has the role {caller.role!r}, which may not {_DOING[permission]}. That takes "
            f"the role {least!r}. {_who_gives(caller.team)}: scanflow token make NAME{given} --role {least}"
        )
    if caller.team is not None and team != caller.team:
        other = "of all teams" if team is None else "of another team"
        return (
            f"The token {caller.name!r} is for the team {caller.team!r}, and this is {other}. {_who_gives(team)}: "
            f"scanflow token make NAME{'' if team is None else f' --team {team}'} --role {caller.role}"
        )
    return None


def _who_gives(team: str | None) -> str:
    whose = "all teams" if team is None else f"the team {team!r} or of all teams"
    return f"Whoever has an admin's token of {whose} can make one"
