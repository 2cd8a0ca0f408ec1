# SPDX-License-Identifier: Apache-2.0
"""The client: the same methods, results and errors as those of a host that is opened here; questions, files, Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests import foreign_vms
from tests.agent.conftest import RunningAgent, running
from vgpuctl import library
from vgpuctl.agent.call_arguments import names_file
from vgpuctl.agent.channel import IdleConnections
from vgpuctl.agent.client import AgentHost
from vgpuctl.errors import (
    FileNeeded,
    Interrupted,
    InvalidInput,
    NeedsConfirmation,
    NotFound,
    Refused,
    ResultUnknown,
    SomeTargetsFailed,
    Unreachable,
    VgpuctlError,
)
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.value import replace


class Steps(NoProgress):
    """Remembers the plan, and the steps that are finished or undone."""

    def __init__(self) -> None:
        self.plan: tuple[str, ...] = ()
        self.finished: list[str] = []
        self.undone: list[str] = []

    def on_plan(self, steps: tuple[str, ...]) -> None:
        self.plan = steps

    def on_step_finish(self, number: int, text: str) -> None:
        self.finished.append(text)

    def on_step_undo(self, text: str) -> None:
        self.undone.append(text)


def test_it_closes_its_connections(agent: RunningAgent) -> None:
    host: Any = agent.connect()
    host.list_vms()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        host.list_vms()
    host.cordon("A100")
    events = host.follow_events(host.read_events().data[0].id)
    next(events)
    events.close()
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_a_connection_that_waits_serves_the_next_request(agent: RunningAgent) -> None:
    dialled: list[socket.socket] = []

    def dial() -> socket.socket:
        dialled.append(agent.dial())
        return dialled[-1]

    idle = IdleConnections()
    host: Any = AgentHost(dial, CallSettings(), "agent", idle=idle)
    for _ in range(3):
        assert host.list_gpus().data
    assert len(dialled) == 1
    host.cordon("A100")
    assert len(dialled) == 2, "the operation's events have a connection of their own"
    with pytest.raises(NotFound):
        host.show_vm("none")
    assert host.list_gpus().data[0].cordoned
    assert len(dialled) == 2, "an error is an answer, too"
    dialled[0].shutdown(socket.SHUT_RDWR)
    host.uncordon("A100")
    assert not host.list_gpus().data[0].cordoned, "the agent had closed it: another one served the change, once"
    begun = [one for one in host.read_events().data if one.reason == "uncordon of root"]
    assert len(begun) == 1
    threads = [threading.Thread(target=host.list_gpus) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = len(dialled)
    assert host.list_gpus().data
    assert len(dialled) == count
    idle.close()
    assert host.list_gpus().data
    assert len(dialled) == count + 1


def test_a_read_after_a_change_shows_it(agent: RunningAgent) -> None:
    host: Any = agent.connect()
    for cordoned in (True, False) * 5:
        (host.cordon if cordoned else host.uncordon)("A100")
        assert host.list_gpus().data[0].cordoned is cordoned


def test_what_no_agent_does_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    nowhere = vgpuctl.connect(f"agent:{tmp_path}/none.sock")
    for act in (nowhere.install_host, nowhere.uninstall_host):
        with pytest.raises(Refused) as caught:
            act()
        assert caught.value.hint == f"as root, on the host itself: sudo vgpuctl {caught.value.facts['call']}"


def test_its_results_are_those_of_the_host_itself(agent: RunningAgent) -> None:
    there, here = agent.connect(), vgpuctl.open_host(agent.host)
    made = there.create_vm("vdi-1", profile="A100-4C")
    assert made.changed
    assert made.data.name == "vdi-1"
    assert there.list_vms() == here.list_vms()
    assert there.show_vm("vdi-1") == here.show_vm("vdi-1")
    assert there.list_gpus(everything=True) == here.list_gpus(everything=True)
    assert there.fits("A100-4C:2", "A100-4C") == here.fits("A100-4C:2", "A100-4C")
    assert there.vm_names() == here.vm_names()
    assert there.explain("A100-4C") == here.explain("A100-4C")
    assert there.wait("vdi-1", event="running") == here.wait("vdi-1", event="running")


def test_its_errors_are_those_of_the_host_itself(agent: RunningAgent) -> None:
    there, here = agent.connect(), vgpuctl.open_host(agent.host)
    for call in (
        lambda host: host.show_vm("nothing"),
        lambda host: host.create_vm("x", profile="A100-99C"),
        lambda host: host.create_vm("a/b", profile="A100-4C"),
        lambda host: host.set_vm("nothing", owner="ada"),
        lambda host: host.create_vm("x", profile="A100-4C", gpu="0000:99:00.0"),
    ):
        with pytest.raises(VgpuctlError) as remote:
            call(there)
        with pytest.raises(VgpuctlError) as local:
            call(here)
        assert type(remote.value) is type(local.value)
        for name in ("message", "hint", "status", "undone", "left", "changed"):
            assert getattr(remote.value, name) == getattr(local.value, name)


def test_several_targets_are_one_call_each_with_one_result(agent: RunningAgent) -> None:
    there = agent.connect()
    there.create_vms("vdi-{}", 3, profile="A100-4C")
    stopped = there.for_each("stop-vm", ["vdi-1", "vdi-2"], lambda host, name: host.stop_vm(name, force=True))
    assert [(row.name, row.changed) for row in stopped.data.targets] == [("vdi-1", True), ("vdi-2", True)]
    with pytest.raises(SomeTargetsFailed) as failed:
        there.for_each("start-vm", ["vdi-1", "gone"], lambda host, name: host.start_vm(name))
    assert failed.value.facts["failed"] == ["gone"]
    assert [vm.state for vm in there.list_vms().data] == ["running", "stopped", "running"]


def test_progress_is_passed_on(agent: RunningAgent) -> None:
    steps = Steps()
    made = agent.connect(progress=steps).create_vm("vdi-1", profile="A100-4C")
    assert steps.plan == made.steps
    assert steps.finished == list(made.steps)


def test_the_question_is_asked_here(agent: RunningAgent) -> None:
    asked: list[str] = []

    def yes(question: str, details: tuple[str, ...]) -> None:
        asked.append(question)
        assert details

    def no(question: str, details: tuple[str, ...]) -> None:
        raise NeedsConfirmation("not confirmed")

    agent.connect().create_vm("vdi-1", profile="A100-4C")
    with pytest.raises(NeedsConfirmation, match="not confirmed"):
        agent.connect(confirm=no).delete_vm("vdi-1")
    assert agent.connect(confirm=yes).delete_vm("vdi-1").changed
    assert asked == ["Delete VM vdi-1? It is running."]


def test_files_are_read_here_and_sent(agent: RunningAgent, tmp_path: Path) -> None:
    user_data = tmp_path / "user-data.yaml"
    user_data.write_text("#cloud-config\npassword: very-secret-word\n")
    spec = tmp_path / "spec.yaml"
    image = "/srv/images/ubuntu-24.04.qcow2"
    spec.write_text(f"{{name: vdi-1, profile: A100-4C, image: {image}, cloud_init: {user_data}}}\n")
    made = agent.connect().ensure_vm(file=str(spec))
    assert made.changed
    assert agent.connect().show_vm("vdi-1").data.cloud_init == str(user_data)
    kept = b"".join(path.read_bytes() for path in agent.state.rglob("*") if path.is_file())
    assert b"very-secret-word" not in kept
    with pytest.raises(NotFound, match=r"there is no spec file .*/none\.yaml"):
        agent.connect().ensure_vm(file=str(tmp_path / "none.yaml"))


def test_vms_of_other_hypervisors_are_read_here_and_sent_as_text(agent: RunningAgent, tmp_path: Path) -> None:
    path = tmp_path / "desk-1.vmx"
    path.write_text(foreign_vms.VMX)
    ova = foreign_vms.write_ova(tmp_path / "desk-2.ova", ("desk-2.ovf", foreign_vms.OVF.encode()))
    result = agent.connect().import_vm(str(path), str(ova))
    assert [vm.name for vm in result.data.vms] == ["desk-1", "desk-2"]
    assert result.data.vms[1].commands[0].partition(" && ")[2].startswith(f"virt-v2v -i ova {ova} ")
    assert any("its disks were not checked" in note for note in result.data.vms[0].notes)
    with pytest.raises(NotFound, match="there is no VM file"):
        agent.connect().import_vm(str(tmp_path / "none.vmx"))


def test_the_agent_reads_no_file_for_a_caller(agent: RunningAgent, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("name: secret\n")
    refused = agent.change("ensure-vm", file=str(secret))
    assert refused["error"]["code"] == FileNeeded.code
    assert "secret\n" not in str(refused)


def test_a_file_that_the_request_does_not_name_is_not_sent(agent: RunningAgent, tmp_path: Path) -> None:
    """An agent of a hostile host asks for what only the caller can read."""
    named = {"name": "vdi", "cloud_init": "/root/user-{:02}.yaml", "file": "/root/spec.yaml"}
    assert names_file("/root/user-01.yaml", named, {})
    assert names_file("/root/net.yaml", named, {"/root/spec.yaml": "network_config: /root/net.yaml\n"})
    assert names_file("b.txt", {"files": ["a.vmx", "b.txt"]}, {})
    assert not names_file("c.txt", {"files": ["a.vmx", "b.txt"]}, {})
    for path in ("/root/.ssh/id_rsa", "/root/user-a.yaml", "/root/spec", "/etc/shadow"):
        assert not names_file(path, named, {})


class UntilCancelled:
    """A port whose method `create_volume` tells that it is reached, and goes on when the call is cancelled."""

    def __init__(self, real: Any, reached: threading.Event, cancelled: Callable[[], bool]) -> None:
        self.real, self.reached, self.cancelled = real, reached, cancelled

    def __getattr__(self, name: str) -> Any:
        if name == "create_volume":
            self.reached.set()
            while not self.cancelled():
                threading.Event().wait(0.01)
        return getattr(self.real, name)


def held(reached: threading.Event) -> Callable[[CallSettings, HostClock | None], GpuHost]:
    """Return what opens a host on which the creation of a disk lasts until the operation is cancelled."""

    def open_host(settings: CallSettings, clock: HostClock | None) -> GpuHost:
        host = library.opener("sim:a100-40")(settings, clock)
        host._ports = replace(host._ports, storage=UntilCancelled(host._ports.storage, reached, settings.cancelled))
        return host

    return open_host


def test_ctrl_c_cancels_the_operation_and_its_undo_is_awaited(tmp_path: Path) -> None:
    reached = threading.Event()

    def stop(number: int, frame: object) -> None:
        raise Interrupted("stopped by SIGINT", signal_number=number)

    def press_ctrl_c() -> None:
        if reached.wait(60):
            os.kill(os.getpid(), signal.SIGINT)

    with running("sim:a100-40", tmp_path, open_host=held(reached)) as agent:
        steps = Steps()
        host = agent.connect(progress=steps)
        before = host.list_gpus()
        old, presser = signal.signal(signal.SIGINT, stop), threading.Thread(target=press_ctrl_c)
        presser.start()
        try:
            with pytest.raises(Interrupted) as stopped:
                host.create_vm("vdi-1", profile="A100-4C")
        finally:
            signal.signal(signal.SIGINT, old)
            presser.join()
        assert stopped.value.signal_number == signal.SIGINT
        assert (stopped.value.left, bool(stopped.value.undone)) == ([], True)
        assert steps.undone == stopped.value.undone
        assert host.list_vms().data == ()
        assert host.list_gpus().data == before.data


class Stops:
    """Connections to an agent of which some are stopped by Ctrl-C, before their answer is read."""

    def __init__(self, agent: RunningAgent, stopped: Callable[[int], bool], reached: threading.Event) -> None:
        self.agent, self.stopped, self.reached, self.number = agent, stopped, reached, 0

    def __call__(self) -> Any:
        self.number += 1
        return _StoppedSocket(self.agent.dial(), self.reached) if self.stopped(self.number) else self.agent.dial()


class _StoppedSocket:
    def __init__(self, real: socket.socket, reached: threading.Event) -> None:
        self.real, self.reached = real, reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def makefile(self, mode: str) -> None:
        assert self.reached.wait(60)
        raise Interrupted("stopped by SIGINT", signal_number=signal.SIGINT)


def test_a_stop_while_a_request_is_on_its_way_cancels_the_operation_that_it_began(tmp_path: Path) -> None:
    reached = threading.Event()
    with running("sim:a100-40", tmp_path, open_host=held(reached)) as agent:
        dial = Stops(agent, lambda number: number == 1, reached)
        with pytest.raises(Interrupted) as stopped:
            AgentHost(dial, CallSettings(), "agent").create_vm("vdi-1", profile="A100-4C")
        operations = agent.ask("GET", "/v1/operations").document["operations"]
    assert (stopped.value.left, bool(stopped.value.undone)) == ([], True)
    assert [one["call"] for one in operations] == ["create-vm"]


def test_the_third_stop_waits_for_nobody(tmp_path: Path) -> None:
    reached = threading.Event()
    with running("sim:a100-40", tmp_path, open_host=held(reached)) as agent:
        dial = Stops(agent, lambda number: number > 1, reached)
        with pytest.raises(Interrupted, match="create-vm is no longer waited for") as stopped:
            AgentHost(dial, CallSettings(), "ssh://ada@gpu-01:22").create_vm("vdi-1", profile="A100-4C")
        operation = str(stopped.value.facts["operation"])
        assert agent.ended(operation)["error"]["code"] == "interrupted"
    assert stopped.value.hint == (
        f"printf 'GET /v1/operations/{operation} HTTP/1.0\\r\\n\\r\\n' | ssh ssh://ada@gpu-01:22 vgpuctl agent dial"
    )


def test_threads_share_it(agent: RunningAgent) -> None:
    host = agent.connect()
    threads = [
        threading.Thread(target=host.create_vm, args=(f"vdi-{n}",), kwargs={"profile": "A100-4C"}) for n in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [vm.name for vm in host.list_vms().data] == ["vdi-a", "vdi-b", "vdi-c", "vdi-d"]


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="does not answer") as away:
        vgpuctl.connect(f"agent:{tmp_path}/agent.sock").list_vms()
    assert "sudo vgpuctl" in str(away.value.hint)
    with pytest.raises(InvalidInput, match="not the name of a host agent"):
        vgpuctl.connect("http://x")


def test_a_change_whose_agent_ends_is_unknown_and_not_unreachable() -> None:
    """It has begun: who takes it for not begun might make it twice."""
    here, there = socket.socketpair()
    body = b'{"id": "x", "state": "running"}'
    there.sendall(f"HTTP/1.1 202 Accepted\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    connections = [here]

    def dial() -> socket.socket:
        if not connections:
            raise Unreachable("the agent has ended")
        return connections.pop()

    with there, pytest.raises(ResultUnknown, match="broke while cordon ran") as unknown:
        AgentHost(dial, CallSettings(), "agent").cordon("A100")
    assert unknown.value.status == 5


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ssh://gpu-01", b"[" + b"0," * 1_000_001 + b"0]"),
        ("ssh://gpu-01", b'"' + b"x" * (17 << 20) + b'"'),
        ("agent", b"[" * 100_000),
    ],
    ids=["values", "bytes", "depth"],
)
def test_an_answer_has_limits(name: str, body: bytes) -> None:
    """Another host may be hostile: it fills no memory here."""

    def dial() -> socket.socket:
        here, there = socket.socketpair()

        def answer() -> None:
            with there, suppress(OSError):
                there.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

        threading.Thread(target=answer).start()
        return here

    with pytest.raises(Unreachable, match="did not arrive"):
        AgentHost(dial, CallSettings(), name).list_vms()
