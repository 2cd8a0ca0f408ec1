# SPDX-License-Identifier: Apache-2.0
"""What is decided here while vgpuctl is brought to a host, with logins that are played."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.remote.test_crowd import Played
from vgpuctl.errors import AnswerLost, HostCannot, Interrupted, Refused, Unreachable, VgpuctlError
from vgpuctl.remote import bringing, crowd
from vgpuctl.remote.ran import Asked, Ran, Watch
from vgpuctl.remote.target import Target
from vgpuctl.remote.wheelhouse import Wheel, Wheelhouse

HOUSE = Wheelhouse("wheels", "1.0", (Wheel("vgpuctl-1.0-py3-none-any.whl", "vgpuctl", "1.0", b"w" * 1000),), "d1")
WORDS = ("--json", "install-host")
BROKE = Ran(None, "", "", "", gave_up="the connection broke")


def done(**data: Any) -> Ran:
    """Return how a command ends that worked."""
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": True, "changed": True, "data": data, "warnings": []}
    return Ran(0, json.dumps(body), "", "")


def looked(was: str | None, *, present: bool = False) -> Ran:
    return done(was=was, present=present, steps=["copy"])


class Host:
    """A host that answers each command of a login with the next of its answers; it takes `taken` bytes of the last."""

    def __init__(self, *answers: Ran, taken: int | None = None) -> None:
        self.answers = list(answers)
        self.taken = taken
        self.asked: list[Asked] = []

    def play(self, asked: Asked, watch: Watch) -> Ran:
        self.asked.append(asked)
        if watch.sent is not None:
            for sent in range(0, (self.taken or len(asked.stdin)) + 1, 100):
                watch.sent(sent)
            watch.sent(self.taken or len(asked.stdin))
        return self.answers.pop(0)

    def reply(self, *, stops: Callable[[], int] = lambda: 0, **more: Any) -> crowd.Reply:
        what = bringing.bring(HOUSE, WORDS, ["/unit"], **{"dry_run": False, "told": None, **more})
        task = crowd.Task(Asked(WORDS), True, "1.0", lambda name, line: None, bring=what)
        (found,) = crowd.ask([Target("gpu", "gpu")], task, lambda target, until: Played(self.play), stops)
        return found


def test_a_host_that_lacks_it_is_looked_at_and_then_gets_program_request_and_wheels():
    host = Host(looked("0.9"), done(brought={"version": "1.0", "was": "0.9"}))
    assert host.reply().answer is not None
    look, install = host.asked
    assert look.program_bytes == install.program_bytes
    request, _, wheels = install.stdin[install.program_bytes :].partition(b"\n")
    assert (json.loads(request)["words"], wheels) == (list(WORDS), b"w" * 1000)
    assert b"w" * 1000 not in look.stdin


def test_a_host_that_has_it_is_asked_as_by_any_command_and_told():
    told: list[str] = []
    host = Host(looked("1.0", present=True), done(steps=[]))
    assert host.reply(told=lambda name, line: told.append(f"{name}: {line}")).answer is not None
    assert (host.asked[1].words, host.asked[1].program_bytes) == (WORDS, None)
    assert told == ["gpu: vgpuctl 1.0 is there already: nothing is copied"]


def test_a_dry_run_copies_nothing():
    host = Host(looked("0.9"))
    found = host.reply(dry_run=True).answer
    assert found is not None
    assert found.document["data"]["steps"] == ["copy"]
    assert found.document["data"]["brought"] == {"version": "1.0", "was": "0.9"}


def test_it_is_told_in_quarters_how_much_is_sent():
    told: list[str] = []
    host = Host(looked(None), done())
    host.reply(told=lambda name, line: told.append(line))
    size = len(host.asked[1].stdin)
    assert len(told) == 4
    assert told[-1] == f"sent {size:,} of {size:,} bytes"


@pytest.mark.parametrize(
    ("host", "raised", "said"),
    [
        (Host(looked("1.0.1")), Refused, "its vgpuctl 1.0.1 is newer than 1.0 of wheels"),
        (Host(looked("1.0.post1")), Refused, "its vgpuctl 1.0.post1 is newer than 1.0 of wheels"),
        (Host(looked("1.1rc1")), Refused, "its vgpuctl 1.1rc1 is newer than 1.0 of wheels"),
        (Host(Ran(127, "", "/usr/bin/python3 is Python 3.9.2", "")), HostCannot, "no Python 3.11 or newer: /usr/bin"),
        (Host(BROKE), Unreachable, "the connection broke"),
        (Host(looked(None), BROKE, taken=500), Unreachable, "bytes were sent, and nothing was installed"),
        (Host(looked(None), BROKE), AnswerLost, "how it ended is not known"),
    ],
)
def test_why_a_host_did_not_get_it(host: Host, raised: type[VgpuctlError], said: str):
    found = host.reply()
    assert isinstance(found.error, raised)
    assert said in found.error.message


def test_a_stop_while_wheels_are_sent_is_no_broken_connection():
    stopped = [0]

    def stop(name: str, line: str) -> None:
        stopped[0] = 1

    host = Host(looked(None), Ran(None, "", "", "", gave_up="it was not waited for"), taken=9000)
    found = host.reply(stops=lambda: stopped[0], told=stop)
    assert isinstance(found.error, Interrupted)


def test_a_refusal_there_is_the_hosts_answer():
    error = {"code": "foreign", "message": "m", "hint": None, "facts": {}, "exit_status": 3, "undone": [], "left": []}
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": False, "changed": False, "error": error}
    found = Host(Ran(3, json.dumps({**body, "warnings": []}), "", "")).reply().answer
    assert found is not None
    assert found.status == 3
