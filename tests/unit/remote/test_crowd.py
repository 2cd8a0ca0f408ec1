# SPDX-License-Identifier: Apache-2.0
"""Many hosts at once, and the judgement of what each left, with logins that are played."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vgpuctl.errors import AnswerLost, Failed, HostCannot, Interrupted, TooSlow, Unreachable, VgpuctlError
from vgpuctl.remote import answer, crowd
from vgpuctl.remote.ran import TOO_LONG, TOO_NOISY, Asked, Ran, Watch
from vgpuctl.remote.target import Target


def document(*, ok: bool = True, schema: str = "vgpuctl/1", code: str = "failed", **more: Any) -> str:
    """Return what a vgpuctl prints."""
    error = {"code": code, "message": "m", "undone": ["one"], "left": ["two"], "exit_status": 1}
    body = {"data": []} if ok else {"error": error}
    return json.dumps({"schema": schema, "kind": "list-gpus", "ok": ok, "changed": False, **body, **more})


def nested(depth: int) -> Any:
    """Return so many lists in each other."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


class Played:
    """A login whose command ends as it was told."""

    user = "root"

    def __init__(self, play: Callable[[Asked, Watch], Ran]) -> None:
        self.play = play
        self.closed = False

    def run(self, asked: Asked, watch: Watch) -> Ran:
        return self.play(asked, watch)

    def close(self) -> None:
        self.closed = True


def task(**more: Any) -> crowd.Task:
    """Return a task that nobody is told of."""
    said = {"changes": False, "here": "0.1.0", "told": lambda name, line: None, **more}
    return crowd.Task(Asked(("--json", "list-gpus")), **said)


def targets(number: int) -> list[Target]:
    return [Target(f"gpu-{n:02}", f"gpu-{n:02}") for n in range(number)]


GOOD = Ran(0, document(), "", "")


def test_replies_come_in_the_order_of_the_hosts_whatever_each_does():
    logins = []

    def connect(target: Target, until: float) -> Played:
        if target.name == "gpu-01":
            raise Unreachable("gpu-01: off")
        if target.name == "gpu-02":
            raise RuntimeError("a bug")
        logins.append(Played(lambda asked, watch: GOOD))
        return logins[-1]

    found = crowd.ask(targets(5), task(), connect, lambda: 0)
    assert [reply.target.name for reply in found] == [f"gpu-0{n}" for n in range(5)]
    assert [type(reply.error) for reply in found] == [type(None), Unreachable, RuntimeError, type(None), type(None)]
    assert all(login.closed for login in logins)


def test_no_more_than_so_many_work_at_once():
    working, most, lock = [0], [0], threading.Lock()
    met = threading.Barrier(3, timeout=30)

    def play(asked: Asked, watch: Watch) -> Ran:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        met.wait()
        with lock:
            working[0] -= 1
        return GOOD

    found = crowd.ask(targets(9), task(at_a_time=3), lambda target, until: Played(play), lambda: 0)
    assert len(found) == 9
    assert most[0] == 3


def test_after_a_stop_no_further_host_is_asked_and_those_that_work_are_told():
    stops = [0]

    def play(asked: Asked, watch: Watch) -> Ran:
        stops[0] = 1
        assert watch.stops() == 1
        return Ran(130, document(ok=False, code="interrupted"), "", "")

    found = crowd.ask(targets(3), task(at_a_time=1), lambda target, until: Played(play), lambda: stops[0])
    assert found[0].answer is not None
    assert found[0].answer.status == 130
    assert [str(reply.error) for reply in found[1:]] == ["gpu-01: not asked", "gpu-02: not asked"]


def test_after_the_third_stop_nobody_is_waited_for():
    stops = [0]
    end = threading.Event()

    def play(asked: Asked, watch: Watch) -> Ran:
        stops[0] = 3
        end.wait(30)
        return GOOD

    (found,) = crowd.ask(targets(1), task(changes=True), lambda target, until: Played(play), lambda: stops[0])
    end.set()
    assert isinstance(found.error, Interrupted)
    assert found.error.left == ["gpu-00: whatever the command did there; it goes on without us"]


@pytest.mark.parametrize(("there", "raised"), [("0.0.9", True), ("0.1.0", False), (None, True)])
def test_a_line_that_is_not_understood_there_names_an_older_vgpuctl_but_not_an_equal_one(there, raised):
    def play(asked: Asked, watch: Watch) -> Ran:
        if asked.words == ("--version",):
            return Ran(0, f"vgpuctl {there}\n" if there else "?", "", "")
        return Ran(2, document(ok=False, code="usage"), "", "")

    (found,) = crowd.ask(targets(1), task(), lambda target, until: Played(play), lambda: 0)
    assert isinstance(found.error, HostCannot) is raised
    if raised:
        assert found.error.facts["there"] == there


LOST = Ran(None, "", "last words\n", "", gave_up="the connection broke")


@pytest.mark.parametrize(
    ("ran", "changes", "raised", "said"),
    [
        (Ran(127, "", "exec: vgpuctl: not found", ""), True, HostCannot, "there is no vgpuctl"),
        (Ran(127, "", "sudo: command not found", None), True, HostCannot, "sudo does not help"),
        (Ran(1, "", "sudo: a password is required", None), True, HostCannot, "a password is required"),
        (Ran(1, "This account is not available.", "", None), True, HostCannot, "no command can be run there: This acc"),
        (Ran(0, document(schema="vgpuctl/2"), "", ""), False, HostCannot, "'vgpuctl/2'"),
        (Ran(1, "Traceback", "KeyError: 1", ""), False, Failed, "not one JSON document"),
        (Ran(0, document() + document(), "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(ok=False), "", ""), False, Failed, "contradicts itself: ok is false, and the exit status 0"),
        (Ran(255, document(), "", ""), False, Failed, "contradicts itself: ok is true, and the exit status 255"),
        (Ran(255, document(), "", ""), True, AnswerLost, "contradicts itself"),
        (Ran(7, document(), "", ""), False, Failed, "contradicts itself"),
        (Ran(0, "[" * 900 + "]" * 900, "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(data=nested(900)), "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(data="N").replace('"N"', "9" * 5000), "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(data="N").replace('"N"', "1e999"), "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(data="N").replace('"N"', "NaN"), "", ""), False, Failed, "not one JSON document"),
        (Ran(0, document(data=[[]] * 1_000_001), "", ""), False, Failed, "not one JSON document"),
        (Ran(1, document(ok=False, error={"code": 5}), "", ""), False, Failed, "not one JSON document"),
        (Ran(1, document(ok=False, error={"code": "x", "message": "m", "left": 5}), "", ""), False, Failed, "not one"),
        (Ran(None, "x", "", "", gave_up=TOO_LONG), False, Failed, "more than 16 MiB"),
        (Ran(None, "x", "", "", gave_up=TOO_LONG), True, AnswerLost, "more than 16 MiB"),
        (Ran(None, "x", "", None, gave_up=TOO_NOISY), True, HostCannot, "no command can be run there: it printed more"),
        (LOST, False, Unreachable, "no answer came: the connection broke"),
        (LOST, True, AnswerLost, "how it ended is not known"),
        (Ran(None, "", "", None, gave_up="the connection broke"), True, Unreachable, "did not begin there"),
        (Ran(None, "", "", None, gave_up="it was not waited for"), True, Interrupted, "before vgpuctl began"),
        (Ran(None, "", "", None, late=True), True, TooSlow, "had not begun"),
        (Ran(None, "", "", "", late=True, gave_up="killed"), False, TooSlow, "was stopped"),
        (Ran(None, "", "", "", late=True, gave_up="killed"), True, AnswerLost, "deadline passed"),
    ],
)
def test_what_is_no_answer_is_told_apart(ran: Ran, changes: bool, raised: type[VgpuctlError], said: str):
    with pytest.raises(raised, match=said):
        answer.judge(ran, "gpu", changes=changes)


@pytest.mark.parametrize(("kind", "status"), [("fits", 1), ("fits", 4), ("doctor", 6), ("diff", 7), ("assert", 7)])
def test_a_command_that_worked_and_has_bad_news_is_an_answer(kind: str, status: int):
    assert answer.judge(Ran(status, document(kind=kind), "", ""), "gpu", changes=False).status == status


def test_a_command_that_was_late_and_undid_says_what_is_left():
    with pytest.raises(TooSlow) as caught:
        answer.judge(Ran(130, document(ok=False), "", "", late=True), "gpu", changes=True)
    assert (caught.value.undone, caught.value.left) == (["one"], ["two"])


def test_a_noisy_shell_is_a_warning():
    found = answer.judge(Ran(0, document(), "", "Welcome\nback\n"), "gpu", changes=False)
    assert found.warnings == ("gpu: the shell there prints before any command, as ~/.bashrc may: Welcome",)
