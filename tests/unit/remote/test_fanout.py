# SPDX-License-Identifier: Apache-2.0
"""Many hosts at once, and the check of each reply, with fake logins."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vgpuctl.errors import DeadlineExceeded, Failed, HostCannot, Interrupted, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.remote import fanout, reply
from vgpuctl.remote.reply import parse
from vgpuctl.remote.session import TOO_LONG, TOO_NOISY, RemoteCommand, RemoteOutput, RunControl, Target


def document(*, ok: bool = True, schema: str = "vgpuctl/1", code: str = "failed", **more: Any) -> str:
    """Return the document that a vgpuctl prints."""
    error = {"code": code, "message": "m", "undone": ["one"], "left": ["two"], "exit_status": 1}
    body = {"data": []} if ok else {"error": error}
    return json.dumps({"schema": schema, "kind": "list-gpus", "ok": ok, "changed": False, **body, **more})


def nested(depth: int) -> Any:
    """Return this many nested lists."""
    result: list[Any] = []
    for _ in range(depth):
        result = [result]
    return result


class Played:
    """A login whose command ends in a given way."""

    user = "root"

    def __init__(self, play: Callable[[RemoteCommand, RunControl], RemoteOutput]) -> None:
        self.play = play
        self.closed = False

    def run(self, asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        return self.play(asked, watch)

    def close(self) -> None:
        self.closed = True


def task(**more: Any) -> fanout.FanoutTask:
    """Return a task that reports nothing."""
    text = {"is_change": False, "local_version": "0.1.0", "report_line": lambda name, line: None, **more}
    return fanout.FanoutTask(RemoteCommand(("--json", "list-gpus")), **text)


def targets(number: int) -> list[Target]:
    return [Target(f"gpu-{n:02}", f"gpu-{n:02}") for n in range(number)]


GOOD = RemoteOutput(0, document(), "", "")


def test_replies_come_in_the_order_of_the_hosts_whatever_each_does():
    logins = []

    def connect(target: Target, until: float) -> Played:
        if target.name == "gpu-01":
            raise Unreachable("gpu-01: off")
        if target.name == "gpu-02":
            raise RuntimeError("a bug")
        logins.append(Played(lambda asked, watch: GOOD))
        return logins[-1]

    result = fanout.run(targets(5), task(), connect, lambda: 0)
    assert [reply.target.name for reply in result] == [f"gpu-0{n}" for n in range(5)]
    assert [type(reply.error) for reply in result] == [type(None), Unreachable, RuntimeError, type(None), type(None)]
    assert all(login.closed for login in logins)


def test_max_parallel_is_respected():
    working, most, lock = [0], [0], threading.Lock()
    met = threading.Barrier(3, timeout=30)

    def play(asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        met.wait()
        with lock:
            working[0] -= 1
        return GOOD

    result = fanout.run(targets(9), task(max_parallel=3), lambda target, until: Played(play), lambda: 0)
    assert len(result) == 9
    assert most[0] == 3


def test_after_a_stop_no_host_starts_and_running_ones_are_notified():
    stops = [0]

    def play(asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        stops[0] = 1
        assert watch.interrupt_count() == 1
        return RemoteOutput(130, document(ok=False, code="interrupted"), "", "")

    result = fanout.run(targets(3), task(max_parallel=1), lambda target, until: Played(play), lambda: stops[0])
    assert result[0].parsed is not None
    assert result[0].parsed.status == 130
    assert [str(reply.error) for reply in result[1:]] == ["gpu-01: not contacted", "gpu-02: not contacted"]


def test_the_third_stop_ends_all_waiting():
    stops = [0]
    end = threading.Event()

    def play(asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        stops[0] = 3
        end.wait(30)
        return GOOD

    (result,) = fanout.run(targets(1), task(is_change=True), lambda target, until: Played(play), lambda: stops[0])
    end.set()
    assert isinstance(result.error, Interrupted)
    assert result.error.left == ["gpu-00: changes that the command may have made there; it continues on its own"]


@pytest.mark.parametrize(("there", "raised"), [("0.0.9", True), ("0.1.0", False), (None, True)])
def test_a_line_that_is_not_understood_there_names_an_older_vgpuctl_but_not_an_equal_one(there, raised):
    def play(asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        if asked.arguments == ("--version",):
            return RemoteOutput(0, f"vgpuctl {there}\n" if there else "?", "", "")
        return RemoteOutput(2, document(ok=False, code="usage"), "", "")

    (result,) = fanout.run(targets(1), task(), lambda target, until: Played(play), lambda: 0)
    assert isinstance(result.error, HostCannot) is raised
    if raised:
        assert result.error.facts["remote_version"] == there


LOST = RemoteOutput(None, "", "last words\n", "", abandon_reason="the connection broke")


@pytest.mark.parametrize(
    ("ran", "changes", "raised", "message"),
    [
        (RemoteOutput(127, "", "exec: vgpuctl: not found", ""), True, HostCannot, "vgpuctl cannot be run there"),
        (RemoteOutput(127, "", "sudo: command not found", None), True, HostCannot, "sudo does not help"),
        (RemoteOutput(1, "", "sudo: a password is required", None), True, HostCannot, "a password is required"),
        (
            RemoteOutput(1, "This account is not available.", "", None),
            True,
            HostCannot,
            "cannot run commands there: This acc",
        ),
        (RemoteOutput(0, "", "", None), True, HostCannot, "as a key for the host agent alone does"),
        (RemoteOutput(0, document(schema="vgpuctl/2"), "", ""), False, HostCannot, "'vgpuctl/2'"),
        (RemoteOutput(1, "Traceback", "KeyError: 1", ""), False, Failed, "not one JSON document"),
        (RemoteOutput(0, document() + document(), "", ""), False, Failed, "not one JSON document"),
        (
            RemoteOutput(0, document(ok=False), "", ""),
            False,
            Failed,
            "is inconsistent: ok is false, and the exit status 0",
        ),
        (
            RemoteOutput(255, document(), "", ""),
            False,
            Failed,
            "is inconsistent: ok is true, and the exit status 255",
        ),
        (RemoteOutput(255, document(), "", ""), True, ResultUnknown, "is inconsistent"),
        (RemoteOutput(7, document(), "", ""), False, Failed, "is inconsistent"),
        (RemoteOutput(0, "[" * 900 + "]" * 900, "", ""), False, Failed, "not one JSON document"),
        (RemoteOutput(0, document(data=nested(900)), "", ""), False, Failed, "not one JSON document"),
        (
            RemoteOutput(0, document(data="N").replace('"N"', "9" * 5000), "", ""),
            False,
            Failed,
            "not one JSON document",
        ),
        (RemoteOutput(0, document(data="N").replace('"N"', "1e999"), "", ""), False, Failed, "not one JSON document"),
        (RemoteOutput(0, document(data="N").replace('"N"', "NaN"), "", ""), False, Failed, "not one JSON document"),
        (RemoteOutput(0, document(data=[[]] * 1_000_001), "", ""), False, Failed, "not one JSON document"),
        (RemoteOutput(1, document(ok=False, error={"code": 5}), "", ""), False, Failed, "not one JSON document"),
        (
            RemoteOutput(1, document(ok=False, error={"code": "x", "message": "m", "left": 5}), "", ""),
            False,
            Failed,
            "not one",
        ),
        (RemoteOutput(None, "x", "", "", abandon_reason=TOO_LONG), False, Failed, "more than 16 MiB"),
        (RemoteOutput(None, "x", "", "", abandon_reason=TOO_LONG), True, ResultUnknown, "more than 16 MiB"),
        (
            RemoteOutput(None, "x", "", None, abandon_reason=TOO_NOISY),
            True,
            HostCannot,
            "cannot run commands there: it printed more",
        ),
        (LOST, False, Unreachable, "no answer came: the connection broke"),
        (LOST, True, ResultUnknown, "its outcome is not known"),
        (
            RemoteOutput(None, "", "", None, abandon_reason="the connection broke"),
            True,
            Unreachable,
            "did not start there",
        ),
        (
            RemoteOutput(None, "", "", None, abandon_reason="it was not waited for"),
            True,
            Interrupted,
            "before vgpuctl started",
        ),
        (RemoteOutput(None, "", "", None, is_late=True), True, DeadlineExceeded, "had not started"),
        (RemoteOutput(None, "", "", "", is_late=True, abandon_reason="killed"), False, DeadlineExceeded, "was stopped"),
        (RemoteOutput(None, "", "", "", is_late=True, abandon_reason="killed"), True, ResultUnknown, "at the deadline"),
    ],
)
def test_each_invalid_reply_has_an_error(ran: RemoteOutput, changes: bool, raised: type[VgpuctlError], message: str):
    with pytest.raises(raised, match=message):
        reply.parse(ran, "gpu", is_change=changes)


@pytest.mark.parametrize(("kind", "status"), [("fits", 1), ("fits", 4), ("doctor", 6), ("diff", 7)])
def test_a_command_that_worked_and_has_bad_news_is_an_answer(kind: str, status: int):
    assert reply.parse(RemoteOutput(status, document(kind=kind), "", ""), "gpu", is_change=False).status == status


def test_a_command_that_was_late_and_undid_says_what_is_left():
    with pytest.raises(DeadlineExceeded) as caught:
        reply.parse(RemoteOutput(130, document(ok=False), "", "", is_late=True), "gpu", is_change=True)
    assert (caught.value.undone, caught.value.left) == (["one"], ["two"])


def test_a_noisy_shell_is_a_warning():
    result = reply.parse(RemoteOutput(0, document(), "", "Welcome\nback\n"), "gpu", is_change=False)
    assert result.warnings == ("gpu: the shell there prints before any command, as ~/.bashrc may: Welcome",)


UNDONE = {"code": "interrupted", "undone": ["start VM a"], "left": ["disk a"]}


@pytest.mark.parametrize(
    ("document", "undone", "left"),
    [
        ({"ok": True, "data": None, "error": [1]}, [], []),
        ({"ok": True, "data": None, "error": {"undone": 5, "left": {}}}, [], []),
        ({"ok": False, "error": UNDONE}, ["start VM a"], ["disk a"]),
    ],
)
@pytest.mark.parametrize("changes", [True, False])
def test_any_reply_after_the_deadline_is_too_late(
    document: dict[str, object], undone: list[str], left: list[str], changes: bool
) -> None:
    out = json.dumps({"schema": "vgpuctl/1", **document})
    with pytest.raises(DeadlineExceeded) as late:
        parse(RemoteOutput(130, out, "", "", is_late=True), "gpu-01", is_change=changes)
    assert (late.value.undone, late.value.left) == (undone, left)
