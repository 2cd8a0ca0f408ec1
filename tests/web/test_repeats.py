# SPDX-License-Identifier: Apache-2.0
"""A form that is sent twice is done once, also by two threads, and also long after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.responses import Response

from tests.controller.conftest import opened
from vgpuctl.controller.database.store import Store, upgrade
from vgpuctl.controller.web.repeats import KEPT_SECONDS, MAX_KEPT, Repeats
from vgpuctl.errors import Busy, InvalidInput, Refused

FORM = {"path": "/change/set-password", "name": "ada"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/fleet.db"
    upgrade(url)
    with opened(url) as store:
        yield store


class Made:
    """Counts how often something is done, after a failure or not."""

    def __init__(self, *failures: Exception) -> None:
        self.count = 0
        self._failures = list(failures)

    def __call__(self) -> Response:
        self.count += 1
        if self._failures:
            raise self._failures.pop()
        return Response(f"secret {self.count}")


def test_two_clicks_at_once_are_one(store: Store) -> None:
    repeats, made, both = Repeats(store), Made(), threading.Barrier(2)

    def send() -> bytes:
        both.wait(30)
        return bytes(repeats.answer("person:ada", "1", FORM, made).body)

    with ThreadPoolExecutor(2) as threads:
        answers = [one.result(30) for one in [threads.submit(send) for _ in range(2)]]
    assert (answers, made.count) == ([b"secret 1", b"secret 1"], 1)


def test_later_it_is_not_done_again_and_the_secret_is_gone(store: Store) -> None:
    now, made = [0.0], Made()
    repeats = Repeats(store, lambda: now[0])
    for now[0] in (0.0, KEPT_SECONDS):
        assert repeats.answer("person:ada", "1", FORM, made).body == b"secret 1"
    now[0] = 2 * KEPT_SECONDS
    for known in (repeats, Repeats(store)):  # another controller, or this one after its restart
        with pytest.raises(Refused, match="done already"):
            known.answer("person:ada", "1", FORM, made)
    assert made.count == 1
    with pytest.raises(Refused, match="belongs to another request"):
        repeats.answer("person:ada", "1", {**FORM, "name": "eve"}, made)
    assert repeats.answer("person:eve", "1", FORM, made).body == b"secret 2"
    with store.database.read() as connection:
        assert "secret" not in str(connection.exec_driver_sql("SELECT * FROM answer").all())


def test_one_that_still_runs_is_not_begun_again_however_long_it_takes(store: Store) -> None:
    now, begun, goes_on = [0.0], threading.Event(), threading.Event()
    repeats, made = Repeats(store, lambda: now[0]), Made()

    def make() -> Response:
        begun.set()
        assert goes_on.wait(30)
        return made()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(repeats.answer, "person:ada", "1", FORM, make)
        assert begun.wait(30)
        now[0] = 3 * KEPT_SECONDS
        for number in range(MAX_KEPT + 1):
            repeats.answer("person:eve", str(number), FORM, lambda: Response("other"))
        second = threads.submit(repeats.answer, "person:ada", "1", FORM, make)
        goes_on.set()
        assert (first.result(30).body, second.result(30).body) == (b"secret 1", b"secret 1")
    now[0] += KEPT_SECONDS
    assert repeats.answer("person:ada", "1", FORM, made).body == b"secret 1", "it is kept from its end on"
    assert made.count == 1


def test_what_failed_can_be_sent_again(store: Store) -> None:
    repeats, made = Repeats(store), Made(Busy("not now"))
    with pytest.raises(Busy):
        repeats.answer("person:ada", "1", FORM, made)
    assert repeats.answer("person:ada", "1", FORM, made).body == b"secret 2"
    for once in ("", "x" * 101, "a\n"):
        with pytest.raises(InvalidInput, match="open its page again"):
            repeats.answer("person:ada", once, FORM, made)
