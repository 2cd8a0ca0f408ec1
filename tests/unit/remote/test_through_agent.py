# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a command are reached through their agents, and what is tried first, with fake logins and agents."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.remote.test_fanout import GOOD, Played, targets, task
from vgpuctl.errors import HostCannot, Unreachable
from vgpuctl.remote import fanout
from vgpuctl.remote.fanout import AgentTask, HostReply
from vgpuctl.remote.reply import Reply
from vgpuctl.remote.session import RemoteOutput

AGENTS = Reply({"ok": True}, 0)
NO_SUDO = RemoteOutput(1, "", "sudo: a password is required", None)
ONLY_DIAL = RemoteOutput(0, "", "", None)
DIAL_FAILED = RemoteOutput(75, "", "vgpuctl: gone", None)


class Host:
    """A host: the user of the login, how its command ends, and why its agent does not answer."""

    def __init__(self, user: str, output: RemoteOutput, problem: str | None) -> None:
        self.user, self.output, self.problem = user, output, problem
        self.steps: list[str] = []

    def find_problem(self) -> str | None:
        self.steps.append("agent")
        return self.problem

    def run(self, **how: Any) -> tuple[HostReply, Played]:
        """Run a command there, and return the reply and the login."""

        def play(*_: object) -> RemoteOutput:
            self.steps.append("command")
            return self.output

        login = Played(play)
        login.user = self.user
        agent = AgentTask(lambda session, control: self, **{"call": lambda *_: AGENTS, **how})
        (reply,) = fanout.run(targets(1), task(agent=agent), lambda target, until: login, lambda: 0)
        return reply, login


@pytest.mark.parametrize(
    ("user", "output", "problem", "comes_first", "steps", "by_agent"),
    [
        ("root", GOOD, None, True, ["command"], False),
        ("root", ONLY_DIAL, None, True, ["command", "agent"], True),
        ("ada", GOOD, None, True, ["agent"], True),
        ("ada", GOOD, "gone", True, ["agent", "command"], False),
        ("ada", GOOD, None, False, ["command"], False),
        ("ada", NO_SUDO, None, False, ["command", "agent"], True),
    ],
)
def test_the_way_to_a_host(
    user: str, output: RemoteOutput, problem: str | None, comes_first: bool, steps: list[str], by_agent: bool
) -> None:
    host = Host(user, output, problem)
    reply, login = host.run(comes_first=comes_first)
    assert (host.steps, reply.error) == (steps, None)
    assert (reply.parsed is AGENTS) is by_agent
    assert login.closed


def test_the_caller_gets_the_agent_of_a_single_host_with_its_login_open() -> None:
    host = Host("ada", GOOD, None)
    reply, login = host.run(call=None)
    assert (reply.agent is host, reply.parsed, login.closed) == (True, None, False)


@pytest.mark.parametrize(
    ("user", "output", "required", "kind", "message"),
    [
        ("ada", NO_SUDO, False, HostCannot, "a password is required; nor does the host agent: no"),
        ("root", DIAL_FAILED, False, Unreachable, "the host agent there does not answer: no"),
        ("root", GOOD, True, Unreachable, "the host agent there does not answer: no"),
    ],
)  # fmt: skip
def test_where_no_way_works_the_error_says_why(
    user: str, output: RemoteOutput, required: bool, kind: type[Exception], message: str
) -> None:
    reply, login = Host(user, output, "no").run(required=required)
    assert type(reply.error) is kind
    assert message in str(reply.error)
    assert login.closed
