"""Access control: a token's role grants permissions, its team limits them to that team's resources. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from scanflow.errors import ForbiddenError
from scanflow.http.home_token import Role

Permission = Literal["read", "propose", "change", "approve", "administer", "log"]

Holder = Role | Literal["step"]
"""The role of a token's holder. ``step``: a step of a run, which logs to MLflow and can do nothing else."""

PERMISSIONS: Mapping[Holder, frozenset[Permission]] = {
    "viewer": frozenset({"read"}),
    "step": frozenset({"log"}),
    "agent": frozenset({"read", "propose", "log"}),
    "editor": frozenset({"read", "propose", "change", "approve", "log"}),
    "admin": frozenset(get_args(Permission)),
}
"""The permissions of each role. ``propose``: send events, label requests, and intents for the arbiter to decide on.
``log``: read and write what MLflow tracks and registers."""

TEAM_KEYS = "team/"
"""The prefix of teams' idempotency keys, which clients may not send."""

ACTIVITIES: Mapping[Permission, str] = {
    "read": "read",
    "propose": "send events, intents and samples to label",
    "change": "run, deploy, stop or change anything",
    "approve": "approve, refuse or revert actions",
    "administer": "make, list or revoke tokens",
    "log": "write to MLflow",
}
"""What each permission lets its holder do, in words."""


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The caller of a request, identified by its token."""

    name: str
    role: Holder = "viewer"
    team: str | None = None
    """The team the token is for. None: all teams."""

    agent: tuple[str, str] | None = None
    """The application and the name of the agent whose own token it is. None: it is no agent's own."""

    agent_token_hash: str | None = None
    """The hash of an agent's own token."""

    def can_see(self, team: str) -> bool:
        """Whether the caller can see resources of a team."""
        return self.team is None or self.team == team

    def scope_key(self, key: str | None) -> str | None:
        """Return an idempotency key qualified by the caller's team."""
        if key is None or self.team is None:
            return key
        return f"{TEAM_KEYS}{hashlib.sha256(f'{self.team}/{key}'.encode()).hexdigest()}"

    def check(self, permission: Permission, team: str | None) -> None:
        """Raise ForbiddenError if the caller lacks a permission on a team's resources; see :func:`explain_refusal`."""
        if (reason := explain_refusal(self, permission, team)) is not None:
            raise ForbiddenError(reason)

    def check_agent(self, app: str, agent: str | None = None) -> None:
        """Raise ForbiddenError if this is the own token of an agent other than ``agent``; None: of another
        application's."""
        if self.agent is None or (app, self.agent[1] if agent is None else agent) == self.agent:
            return
        other = f"the application {app!r}" if agent is None else f"the agent {app}/{agent}"
        raise ForbiddenError(
            f"The token is the agent {'/'.join(self.agent)}'s own, and cannot speak for {other}. An agent's token is "
            "for that agent alone."
        )


def explain_refusal(caller: TokenHolder, permission: Permission, team: str | None) -> str | None:
    """Return why a caller lacks a permission on resources of ``team``, and who can grant it; None: it has it.

    ``team`` None: the resource is of all teams, as the server itself is.
    """
    if permission not in PERMISSIONS[caller.role]:
        least = next(role for role in ("viewer", "editor", "admin") if permission in PERMISSIONS[role])
        team_option = "" if caller.team is None else f" --team {caller.team}"
        return (
            f"The token {caller.name!r} has the role {caller.role!r}, which cannot {ACTIVITIES[permission]}. "
            f"That requires the role {least!r}. {_describe_issuer(caller.team)}: scanflow token make "
            f"NAME{team_option} --role {least}"
        )
    if caller.team is not None and team != caller.team:
        other = "of all teams" if team is None else "of another team"
        return (
            f"The token {caller.name!r} is for the team {caller.team!r}, but the resource is {other}. "
            f"{_describe_issuer(team)}: scanflow token make NAME"
            f"{'' if team is None else f' --team {team}'} --role {caller.role}"
        )
    return None


def _describe_issuer(team: str | None) -> str:
    whose = "all teams" if team is None else f"the team {team!r} or of all teams"
    return f"An admin of {whose} can make a token"
