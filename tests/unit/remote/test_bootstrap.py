# SPDX-License-Identifier: Apache-2.0
"""The local decisions of the bootstrap of a host, with fake logins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.remote.test_fanout import Played
from vgpuctl.errors import HostCannot, Interrupted, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.remote import bootstrap, fanout
from vgpuctl.remote.debian_package import DebianPackage
from vgpuctl.remote.session import RemoteCommand, RemoteOutput, RunControl
from vgpuctl.remote.target import Target

PACKAGE = DebianPackage("dist/vgpuctl.deb", "vgpuctl.deb", "1.0-1", b"w" * 1000)
WORDS = ("--json", "install-host")
BROKE = RemoteOutput(None, "", "", "", abandon_reason="the connection broke")


def done(**data: Any) -> RemoteOutput:
    """Return the output of a successful command."""
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": True, "changed": True, "data": data, "warnings": []}
    return RemoteOutput(0, json.dumps(body), "", "")


def inspect_reply(was: str | None, *, present: bool = False) -> RemoteOutput:
    return done(was=was, present=present, steps=["copy"])


class Host:
    """A host that answers each command of a login with its next reply; it reads `taken` bytes of the last one."""

    def __init__(self, *answers: RemoteOutput, taken: int | None = None) -> None:
        self.answers = list(answers)
        self.taken = taken
        self.asked: list[RemoteCommand] = []

    def play(self, asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        self.asked.append(asked)
        if watch.report_sent is not None:
            for sent in range(0, (self.taken or len(asked.stdin)) + 1, 100):
                watch.report_sent(sent)
            watch.report_sent(self.taken or len(asked.stdin))
        return self.answers.pop(0)

    def reply(self, *, stops: Callable[[], int] = lambda: 0, **more: Any) -> fanout.HostReply:
        what = bootstrap.plan_package(PACKAGE, WORDS, **{"dry_run": False, "report_line": None, **more})
        task = fanout.FanoutTask(RemoteCommand(WORDS), True, "1.0", lambda name, line: None, bootstrap=what)
        (result,) = fanout.run([Target("gpu", "gpu")], task, lambda target, until: Played(self.play), stops)
        return result


def test_a_host_without_vgpuctl_gets_program_request_and_package():
    host = Host(inspect_reply("0.9"), done(brought={"version": "1.0", "was": "0.9"}))
    assert host.reply().parsed is not None
    observed, install = host.asked
    assert observed.program_bytes == install.program_bytes
    request, _, package = install.stdin[install.program_bytes :].partition(b"\n")
    assert (json.loads(request)["words"], package) == (list(WORDS), b"w" * 1000)
    assert b"w" * 1000 not in observed.stdin


def test_a_host_that_has_vgpuctl_runs_the_command():
    reported: list[str] = []
    host = Host(inspect_reply("1.0", present=True), done(steps=[]))
    assert host.reply(report_line=lambda name, line: reported.append(f"{name}: {line}")).parsed is not None
    assert (host.asked[1].arguments, host.asked[1].program_bytes) == (WORDS, None)
    assert reported == ["gpu: vgpuctl 1.0-1 is already installed there: nothing is copied"]


def test_a_dry_run_copies_nothing():
    host = Host(inspect_reply("0.9"))
    result = host.reply(dry_run=True).parsed
    assert result is not None
    assert result.document["data"]["steps"] == ["copy"]
    assert result.document["data"]["brought"] == {"version": "1.0-1", "was": "0.9"}


def test_sent_bytes_are_reported_in_quarters():
    reported: list[str] = []
    host = Host(inspect_reply(None), done())
    host.reply(report_line=lambda name, line: reported.append(line))
    size = len(host.asked[1].stdin)
    assert len(reported) == 4
    assert reported[-1] == f"sent {size:,} of {size:,} bytes"


@pytest.mark.parametrize(
    ("host", "raised", "output"),
    [
        (
            Host(RemoteOutput(127, "", "/usr/bin/python3 is Python 3.9.2", "")),
            HostCannot,
            "no Python 3.11 or newer: /usr/bin",
        ),
        (Host(BROKE), Unreachable, "the connection broke"),
        (Host(inspect_reply(None), BROKE, taken=500), Unreachable, "bytes were sent, and nothing was installed"),
        (Host(inspect_reply(None), BROKE), ResultUnknown, "its outcome is not known"),
    ],
)
def test_why_a_host_did_not_get_it(host: Host, raised: type[VgpuctlError], output: str):
    result = host.reply()
    assert isinstance(result.error, raised)
    assert output in result.error.message


def test_a_stop_while_the_package_is_sent_is_no_broken_connection():
    stopped = [0]

    def stop(name: str, line: str) -> None:
        stopped[0] = 1

    host = Host(inspect_reply(None), RemoteOutput(None, "", "", "", abandon_reason="it was not waited for"), taken=9000)
    result = host.reply(stops=lambda: stopped[0], report_line=stop)
    assert isinstance(result.error, Interrupted)


def test_a_refusal_there_is_the_hosts_answer():
    error = {"code": "unmanaged", "message": "m", "hint": None, "facts": {}, "exit_status": 3, "undone": [], "left": []}
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": False, "changed": False, "error": error}
    result = Host(RemoteOutput(3, json.dumps({**body, "warnings": []}), "", "")).reply().parsed
    assert result is not None
    assert result.status == 3
