# SPDX-License-Identifier: Apache-2.0
"""Ports that give answers no libvirt and no other host would give. The tests use them below the command line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import odd
from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, request, run_reconcile, start, stop
from vgpuctl.host.virt import libvirt_xml
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.operations import diagnose, guest, moves, queries
from vgpuctl.operations.desired_state import export_host
from vgpuctl.operations.images import list_images
from vgpuctl.ports.host import Host
from vgpuctl.remote import reply
from vgpuctl.remote.session import RemoteCommand, RunControl
from vgpuctl.remote.ssh_session import SshSession
from vgpuctl.value import replace

CAPABILITIES = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><domain>kvm</domain>
<os supported='yes'><enum name='firmware'><value>efi</value></enum><loader supported='yes'><enum name='secure'>
<value>yes</value></enum></loader></os><devices><tpm supported='yes'><enum name='model'><value>tpm-crb</value></enum>
<enum name='backendModel'><value>emulator</value></enum></tpm></devices></domainCapabilities>"""


class Changed:
    """A hypervisor that changes the XML of one domain, always in the same way. The rest is the simulator's."""

    def __init__(self, rng: Random, real: Any) -> None:
        self._rng = rng
        self._real = real
        self._changed_xml: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _alter(self, xml: str) -> str:
        if xml not in self._changed_xml:
            self._changed_xml[xml] = odd.xml_text(self._rng, xml)
        return self._changed_xml[xml]

    def _changed(self, record: DomainInfo) -> DomainInfo:
        if record.name != "vdi-1":
            return record
        live = record.live_xml
        return replace(record, xml=self._alter(record.xml), live_xml=None if live is None else self._alter(live))

    def domains(self) -> tuple[DomainInfo, ...]:
        return tuple(self._changed(record) for record in self._real.domains())

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        result = self._real.find_domain(name_or_uuid)
        return None if result is None else self._changed(result)

    def definition(self, uuid: str) -> str:
        return self._alter(self._real.definition(uuid))


def prepared(directory: Path) -> None:
    """Create the host. Every case of `damaged` gets a copy of it."""
    host = open_sim_host(directory)
    for name in ("vdi-1", "vdi-2"):
        create(host.ports, request("A100-4C", name=name))


def damaged(rng: Random, place: Path) -> object:
    """Run an action on a host where libvirt shows one domain changed; or parse changed libvirt capabilities."""
    if rng.random() < 0.1:
        root = libvirt_xml.parse_xml(odd.xml_text(rng, CAPABILITIES))
        return libvirt_xml.parse_capabilities(root, kvm=True, enrolled_keys=True)
    host = open_sim_host(place / "host")
    ports = replace(host.ports, hypervisor=Changed(rng, host.ports.hypervisor))
    result = rng.choice(ACTS)(ports)
    if "stumbled" in repr(result):
        raise AssertionError(repr(result))
    _check_other_vm(host)
    return result


def _check_other_vm(host: SimulatedHost) -> None:
    """Check that the other VM still exists and runs."""
    record = host.ports.hypervisor.find_domain("vdi-2")
    assert record is not None, "the VM beside it is gone"
    assert record.live_xml is not None, "the VM beside it was stopped"


def _moves(ports: Host) -> object:
    return moves.defragment(ports, context(dry_run=True, wait_seconds=1), max_moves=None)


ACTS: Sequence[Callable[[Host], object]] = (
    queries.list_gpus,
    queries.list_vms,
    queries.list_profiles,
    lambda ports: queries.explain(ports, "A100-4C"),
    lambda ports: queries.show_vm(ports, context(), "vdi-1"),
    lambda ports: guest.read_console(ports, context(), "vdi-1"),
    lambda ports: guest.read_addresses(ports, context(), "vdi-1"),
    export_host,
    list_images,
    diagnose.diagnose,
    run_reconcile,
    lambda ports: create(ports, request("A100-4C", name="vdi-3")),
    lambda ports: start(ports, "vdi-1"),
    lambda ports: stop(ports, "vdi-1"),
    lambda ports: delete(ports, "vdi-1"),
    _moves,
)


# -------------------------------------------------------------------------- another host

BEGUN = b"vgpuctl-over-ssh 1234\n"
DOCUMENT: dict[str, Any] = {
    "schema": "vgpuctl/1",
    "kind": "list-vms",
    "ok": True,
    "changed": False,
    "data": [{"name": "vdi-1", "state": "running", "vgpus": []}],
    "warnings": ["a warning"],
}
FAILURE: dict[str, Any] = {
    "schema": "vgpuctl/1",
    "kind": "create-vm",
    "ok": False,
    "changed": False,
    "error": {
        "code": "no-capacity",
        "message": "no room",
        "hint": None,
        "facts": {"doctor": [{"id": "vfs", "verdict": "fail", "evidence": ["x"], "fix": "y"}]},
        "exit_status": 4,
        "undone": [],
        "left": [],
    },
    "warnings": [],
}


class Channel:
    """An SSH transport and channel in one, for a command that prints these bytes and ends."""

    def __init__(self, out: bytes, err: bytes, status: int) -> None:
        self._streams = {"out": memoryview(out), "err": memoryview(err)}
        self._status = status
        self.exit_status = status
        self.status_event = threading.Event()
        self.eof_received = self.closed = False
        self.ends = os.pipe()

    def open_session(self) -> Channel:
        return self

    def is_active(self) -> bool:
        return False

    def exec_command(self, line: str) -> None:
        pass

    def shutdown_write(self) -> None:
        pass

    def send_ready(self) -> bool:
        return True

    def send(self, piece: bytes) -> int:
        return len(piece)

    def close(self) -> None:
        pass

    def fileno(self) -> int:
        return self.ends[0]

    def exit_status_ready(self) -> bool:
        return not any(self._streams.values())

    def recv_exit_status(self) -> int:
        return self._status

    def recv_ready(self) -> bool:
        return bool(self._streams["out"])

    def recv_stderr_ready(self) -> bool:
        return bool(self._streams["err"])

    def _take(self, name: str, size: int) -> bytes:
        taken, self._streams[name] = self._streams[name][:size], self._streams[name][size:]
        self.eof_received = not any(self._streams.values())
        return bytes(taken)

    def recv(self, size: int) -> bytes:
        return self._take("out", size)

    def recv_stderr(self, size: int) -> bytes:
        return self._take("err", size)


def answered(rng: Random) -> object:
    """Parse the output of a played host, and show its error as the local command does."""
    document = odd.changed(rng, rng.choice((DOCUMENT, FAILURE)))
    output = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    noise = rng.choice((b"", b"Welcome\n", b"\xff\0\n" * 100, b"x" * (2 << 20), b"vgpuctl-over-ssh -1\n"))
    marker = rng.choice((BEGUN, BEGUN, BEGUN, b"", b"vgpuctl-over-ssh " + b"9" * 5000 + b"\n"))
    ways = (output, output[: rng.randrange(len(output))], b"[" * 5000, b"x" * (20 << 20), b'{"a":' * 3000, b"\xff")
    out = noise + marker + rng.choice((output, output, rng.choice(ways)))
    err = rng.choice((b"", b"a line\n", b"\x1b[2J\n" * 50_000, b"x" * (4 << 20), b"\xff\n"))
    channel = Channel(out, err, rng.choice((0, 0, 1, 4, 127, 255, -1)))
    reported: list[str] = []
    session = SshSession("gpu-01", "root", channel, time.monotonic() + 60, lambda: None)
    try:
        ended = session.run(RemoteCommand(("list-vms",)), RunControl(time.monotonic() + 60, reported.append, lambda: 0))
    finally:
        session.close()
    assert sum(map(len, reported)) < 8 << 20, "more of stderr is shown than anybody reads"
    return _shown(rng, reply.parse(ended, "gpu-01", is_change=rng.random() < 0.5))


def _shown(rng: Random, parsed: reply.Reply) -> object:
    """Print the reply as the local command prints that of a remote host."""
    from vgpuctl.cli import remote_result
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.remote.fanout import HostReply
    from vgpuctl.remote.session import Target

    settings = Settings()
    settings.kind = rng.choice(("list-vms", "create-vm"))
    settings.output = rng.choice(("table", "json"))
    reply = HostReply(Target("gpu-01", "gpu-01"), 0.1, parsed)
    return remote_result.print_reply(settings, reply, 0)
