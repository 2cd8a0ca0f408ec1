# SPDX-License-Identifier: Apache-2.0
"""A form that is sent twice, by a double click or by loading its answer again, is done once, and answered alike.

The database keeps for a day that it was done; the answer itself, which may have a secret, is kept for a minute in
memory alone. One that still runs is never forgotten here.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from vgpuctl.controller.database.journal_rows import KnownAnswer
from vgpuctl.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

KEPT_SECONDS, MAX_KEPT = 60.0, 1000
MAX_ONCE_CHARACTERS = 100


class _Sent:
    """A form that was sent. `answer`: None until it is done."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.lock = threading.Lock()
        self.answer: Response | None = None


class Repeats:
    """The forms that were sent. `clock`: in seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[tuple[str, str], _Sent] = {}

    def answer(self, who: str, once: str, what: Mapping[str, Any], make: Callable[[], Response]) -> Response:
        """Return what `make` does, or what it returned for the same form before. `once`: the text in the form.

        `what`: what the form asks for.

        Raises:
            InvalidInput: the form has no such text. Refused: it was done longer ago; or the text is another form's.
        """
        if not 0 < len(once) <= MAX_ONCE_CHARACTERS or not once.isprintable():
            raise InvalidInput("this form cannot be sent: open its page again")
        digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
        sent = self._find((who, f"form {digest} {once}"))
        with sent.lock:
            if sent.answer is None:
                if self._store.answers.find(who, once, digest) is not None:
                    raise Refused("this was done already, and is not done again", hint="go back to the page before")
                sent.answer = make()
                sent.at = self._clock()
                self._store.answers.keep(who, once, KnownAnswer(digest, sent.answer.status_code, ""))
            return sent.answer

    def _find(self, key: tuple[str, str]) -> _Sent:
        with self._lock:
            now = self._clock()
            idle = [one for one, sent in self._sent.items() if not sent.lock.locked()]
            old = [one for one in idle if now - self._sent[one].at > KEPT_SECONDS]
            for one in old or idle[: max(0, len(self._sent) - MAX_KEPT)]:
                del self._sent[one]
            return self._sent.setdefault(key, _Sent(now))
