# SPDX-License-Identifier: Apache-2.0
"""The calls that a person makes about tokens of his own; `FleetService` has them with all other calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.controller.model import ApiToken, FleetCaller
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.times import time_text
from vgpuctl.errors import InvalidInput, NotAllowed
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.people import ApiTokenResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

USUAL_DAYS, MOST_DAYS = 30, 90


class MyTokenCalls:
    """The calls. `FleetService` says which store they are about."""

    _store: Store

    def list_my_tokens(self, caller: FleetCaller) -> QueryResult[tuple[ApiTokenResult, ...]]:
        """Return the caller's own tokens, without their secrets."""
        return QueryResult(tuple(map(token_result, self._store.personal_tokens.list(caller.name))))

    def add_my_token(self, caller: FleetCaller, name: str, days: int = USUAL_DAYS) -> Outcome[ApiTokenResult]:
        """Make a token with which programs are the caller, with what he may do then; its secret is shown this once."""
        from vgpuctl.controller.digests import digest_of, new_token

        refuse_token(caller)
        pool_rules.checked_name(name)
        if not 1 <= days <= MOST_DAYS:
            raise InvalidInput(f"days: {days} is not a number from 1 to {MOST_DAYS}")
        secret = new_token()
        token = self._store.personal_tokens.add(caller.name, name, digest_of(secret), days, caller.name)
        return Outcome(True, token_result(token, secret))

    def delete_my_token(self, caller: FleetCaller, name: str) -> Outcome[ApiTokenResult]:
        """Delete a token of the caller's own: it opens nothing any more."""
        return Outcome(True, token_result(self._store.personal_tokens.delete(caller.name, name, caller.name)))


def refuse_token(caller: FleetCaller) -> None:
    """Refuse that somebody gets a credential by a token of a person: it would outlive that token.

    Raises:
        NotAllowed: the caller has a token of his own, and no session.
    """
    if caller.token is not None:
        raise NotAllowed(
            "a token of a person makes no tokens and sets no passwords",
            hint="sign in on the controller's page, or run the command on the controller's machine",
            rule="token",
        )


def token_result(token: ApiToken, secret: str | None = None) -> ApiTokenResult:
    """Return a token as calls answer with it. `secret`: only of one that was made now."""
    return ApiTokenResult(
        token.name, None if token.role is None else str(token.role), time_text(token.created_at) or "",
        time_text(token.expires_at), secret, None if token.right is None else str(token.right), token.pools,
        token.person,
    )  # fmt: skip
