"""The pages of the provider in ``provider.py``, and what it says of people: Django reads this module by its name."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import LoginView
from django.urls import include, path
from oauth2_provider.oauth2_validators import OAuth2Validator

urlpatterns = [
    path("accounts/login/", LoginView.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]


class Validator(OAuth2Validator):
    """Gives groups to who asks for the scope ``groups``, as the toolkit gives an email for ``email``."""

    oidc_claim_scope = {**OAuth2Validator.oidc_claim_scope, "groups": "groups"}  # noqa: RUF012  the toolkit's way

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        person = request.user
        groups = [group.name for group in person.groups.all()]
        return {"email": person.email, "email_verified": True, "groups": groups}
