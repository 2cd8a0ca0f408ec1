"""The helper in guests: its program with a real virtio port, systemd-logind and PAM; the agent with a real libvirt.

L2 is the guest of the first test, and the host of the second one, whose tiny guest has a helper in shell.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.machine import Lab
from tests.lab.test_after_boot import INSTALLED
from tests.lab.test_agent import SERVES
from tests.lab.vgpuctl_in import must, put_gpu, use_defaults
from vgpuctl.model.guest_report import GuestAnswer, GuestReport, parse_line

SECONDS = 60.0
SERVICE = "/etc/pam.d/xrdp-sesman"
"""A service through which people log on; what it has is that of the lab's `vgpulab-session`."""
DESK = "systemd-run --quiet --collect --unit desk-{user} --uid {user} -p PAMName=xrdp-sesman sleep 600"


class Host:
    """L2's host, as the helper in L2 sees it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines = end.makefile("rb")
        self._number = 0

    def _next(self) -> GuestReport | GuestAnswer:
        return parse_line(self._lines.readline().rstrip(b"\n"), 1.0)

    def until(self, users: list[str]) -> GuestReport:
        """Return the report that has just these users; the helper sends one after each change."""
        while True:
            message = self._next()
            if isinstance(message, GuestReport) and [user.user for user in message.users or ()] == users:
                return message

    def report(self) -> GuestReport:
        """Ask for a report and return it."""
        self._end.sendall(b'{"verb": "report"}\n')
        message = self._next()
        while not isinstance(message, GuestReport):
            message = self._next()
        return message

    def ask(self, verb: str, **values: Any) -> str | None:
        """Return why a request was refused; None: it was carried out."""
        self._number += 1
        self._end.sendall(json.dumps({"verb": verb, "id": self._number, **values}).encode() + b"\n")
        message = self._next()
        while not isinstance(message, GuestAnswer):
            message = self._next()
        assert message.id == self._number
        return message.error


@contextmanager
def host_of(lab: Lab) -> Iterator[Host]:
    """Connect to L2's virtio port."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(SECONDS)
        end.connect(str(lab.work / "helper"))
        yield Host(end)


@pytest.mark.quick
@pytest.mark.deadline(180)
def test_the_helper_knows_who_is_logged_on_and_lets_in_whom_it_should(lab: Lab) -> None:
    lab.run("vgpuctl print-helper > /root/helper.py && python3 /root/helper.py install && useradd ada && useradd bob")
    lab.run(f"grep pam_systemd.so /etc/pam.d/vgpulab-session > {SERVICE}")
    with host_of(lab) as host:
        report = host.report()
        assert (report.users, report.driver, report.host_driver, report.mps) == ((), None, None, False)
        assert host.ask("message", text="hello") == "nobody is logged on"
        lab.run(DESK.format(user="ada"))
        assert host.until(["ada"]).users is not None
        assert host.ask("message", text="hello") is None
        lab.run("systemctl stop desk-ada")
        host.until([])

        assert "/etc/pam.d" in (host.ask("allow-logon", user="bob") or "")
        lab.run(f"cp /etc/pam.d/vgpulab-session {SERVICE}")
        assert host.ask("allow-logon", user="nobody-here") == "this guest has no user nobody-here"
        assert host.ask("allow-logon", user="bob") is None
        assert lab.run(DESK.format(user="ada"), check=False).returncode == 0
        lab.wait_until("systemctl show -P Result desk-ada | grep -q exit-code || ! systemctl is-active desk-ada")
        lab.run(DESK.format(user="bob"))
        assert [user.user for user in host.until(["bob"]).users or ()] == ["bob"]

        assert host.ask("shutdown-in", minutes=60, text="New image") is None
        assert "New\\x20image" in lab.read("/run/systemd/shutdown/scheduled")
        assert host.ask("shutdown-in", minutes=None) is None
        assert lab.run("test -e /run/systemd/shutdown/scheduled", check=False).returncode == 1
        token = "/etc/nvidia/ClientConfigToken/client_configuration_token_vgpuctl.tok"
        error = host.ask("put-token", part=1, parts=1, data="a.b.c", sha256=hashlib.sha256(b"a.b.c").hexdigest())
        assert error is not None
        assert error.startswith("the token is in place, but NVIDIA's service was not restarted: systemctl failed")
        assert lab.run(["stat", "-c", "%a %U", token]).stdout.split() == ["600", "root"]
    with host_of(lab) as host:
        assert [user.user for user in host.report().users or ()] == ["bob"], "after another connection"


@pytest.mark.deadline(400)
def test_the_agent_holds_the_channel_of_a_running_vm(lab: Lab) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    must(lab, "install-host", "--agent")
    lab.wait_until(SERVES)
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    lab.wait_until("grep -q ada /run/vgpuctl/guests/*", timeout=120)
    report = must(lab, "show-vm", "vm-1")["helper_report"]
    assert (report["version"], report["users"]) == ("1", [{"user": "ada", "state": "active", "idle_seconds": 0}])
    assert must(lab, "message-vm", "vm-1", "--text", "hello")["name"] == "vm-1"
    lab.run("systemctl restart libvirtd.service")
    must(lab, "message-vm", "vm-1", "--text", "hello")
    lab.run("virsh destroy vm-1")
    lab.wait_until("! ls /run/vgpuctl/guests | grep -q .", timeout=60)
    events = [event["type"] for event in must(lab, "events") if event["type"].startswith("guest-")]
    assert events == ["guest-helper-up", "guest-users", "guest-helper-lost"]
    must(lab, "delete-vm", "vm-1")
