# SPDX-License-Identifier: Apache-2.0
"""Who may log on in a guest: names of users and accounts, and one-time passwords.

The helpers in guests (`templates/guest`) check the same again: they believe the host as little as it believes them.
"""

from __future__ import annotations

import re
import secrets

ACCOUNT_PATTERN = r"[a-z_][a-z0-9_-]{0,31}"
"""An account that a helper makes: what `useradd` of every distribution takes. Windows takes 20 characters of it."""
PASSWORD_PATTERN = r"[A-Za-z0-9](?:-?[A-Za-z0-9]){11,63}"  # noqa: S105 - a pattern
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}", re.ASCII)
_NOT_USERS = ("ALL", "LOCAL", "EXCEPT")
"""Words that Linux-PAM's pam_access takes for more than a user (access.conf(5))."""
_ACCOUNT = re.compile(ACCOUNT_PATTERN, re.ASCII)
_PASSWORD = re.compile(PASSWORD_PATTERN, re.ASCII)
_LETTERS, _DIGITS = "abcdefghjkmnpqrstuvwxyz", "23456789"
"""Without those that people take for others."""
_GROUPS, _LETTERS_OF_GROUP = 4, 4


def is_guest_user(name: str) -> bool:
    r"""Return whether a text can be the name of a user who is let in: `alice`, `CORP\alice`, `alice@corp.example`."""
    return _USER.fullmatch(name) is not None and name.upper() not in _NOT_USERS


def is_account(name: str) -> bool:
    """Return whether a text can be the name of an account that a helper makes."""
    return _ACCOUNT.fullmatch(name) is not None and is_guest_user(name)


def is_password(text: str) -> bool:
    """Return whether a text has the form of a one-time password."""
    return _PASSWORD.fullmatch(text) is not None


def new_password() -> str:
    """Return a random password of more than 90 bits: four groups of letters and a digit.

    Windows' rule for complex passwords wants three kinds of characters: small letters, digits, and the hyphens.
    """
    groups = []
    for _ in range(_GROUPS):
        characters = [secrets.choice(_LETTERS) for _ in range(_LETTERS_OF_GROUP)]
        characters.insert(secrets.randbelow(_LETTERS_OF_GROUP + 1), secrets.choice(_DIGITS))
        groups.append("".join(characters))
    return "-".join(groups)


def is_same_user(one: str, other: str) -> bool:
    r"""Return whether two names may be one user's: a guest shows `alice` for CORP\alice and alice@corp.example."""
    return _bare(one) == _bare(other)


def _bare(name: str) -> str:
    return name.rpartition("\\")[2].partition("@")[0].casefold()
