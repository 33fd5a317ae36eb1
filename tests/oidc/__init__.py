"""A provider of OpenID Connect that is not ours, and a sign-in there."""

PASSWORDS = {"ada": "lovelace-1843", "bob": "nobody-0000"}
"""Of the people that the provider knows. Ada is in the group vision-editors, Bob in none."""
