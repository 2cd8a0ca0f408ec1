# SPDX-License-Identifier: Apache-2.0
"""Signing in at an OIDC issuer: the browser goes there with a cookie, and comes back with it, to any controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.controller.model import Realm
from vgpuctl.controller.sessions import BegunSession, Limit, PasswordSignIn, TooManyTries, network_of
from vgpuctl.controller.sign_in.signed_in import SignInRefused, for_strangers
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.documents import to_json_value

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.sign_in.oidc import Oidc

RETURN_PATH = "/sign-in/oidc/done"
BEGUN_SECONDS = 600.0
_KIND = "oidc"


class OidcSignIn:
    """Sends people to an issuer, and begins sessions of those who come back. `sessions`: begins them."""

    def __init__(self, store: Store, oidc: Oidc, sessions: PasswordSignIn) -> None:
        self._store = store
        self._oidc = oidc
        self._sessions = sessions
        self._of_address = Limit(300, 1.0, store.clock)

    @property
    def name(self) -> str:
        """The issuer's name, for the button."""
        return self._oidc.name

    def begin(self, path: str, address: str) -> tuple[str, str]:
        """Return the address at the issuer, and the secret for the browser's cookie. `path`: where he goes then.

        Raises:
            SignInUnavailable: the issuer does not answer. TooManyTries: too many begin from there.
        """
        network = network_of(address)
        if wait := self._of_address.wait(network):
            seconds = int(wait) + 1
            raise TooManyTries("too many sign in from there", hint=f"try again in {seconds} seconds", seconds=seconds)
        self._of_address.count(network)
        try:
            url, pending = self._oidc.begin(self._oidc.address + RETURN_PATH)
        except VgpuctlError as error:
            raise for_strangers(error) from error
        state = json.dumps({"path": path, "pending": to_json_value(pending)})
        return url, self._store.secrets.give_out(_KIND, state, BEGUN_SECONDS)

    def finish(self, secret: str | None, query: Mapping[str, str], address: str) -> tuple[BegunSession, str]:
        """Begin the session of who came back, and return the path where he goes.

        Raises:
            SignInRefused: nobody signed in, or it was another browser. SignInUnavailable: the issuer does not answer.
            NotAllowed: the account is disabled, or another realm's.
        """
        from vgpuctl.controller.sign_in.oidc import Pending

        text = None if secret is None else self._store.secrets.take(_KIND, secret)
        if text is None:
            raise SignInRefused("this sign-in did not begin in this browser, or too long ago", problem="begun")
        state = json.loads(text)
        try:
            person = self._oidc.finish(Pending(**state["pending"]), query)
        except VgpuctlError as error:
            raise for_strangers(error) from error
        session = self._sessions.begin(person.name, Realm.OIDC, address, person.groups, person.shown)
        self._of_address.count(network_of(address), -1.0)
        return session, str(state["path"])
