# SPDX-License-Identifier: Apache-2.0
"""Seams that say what no libvirt and no other host would: handed in, below the command line."""

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
from tests.worlds import Host, Silent, create, delete, mend, open_host, start, stop, wish
from vgpuctl.engine import diagnose, guest, moves, queries
from vgpuctl.engine.export import export_host
from vgpuctl.engine.images import list_images
from vgpuctl.host.virt import capabilities, documents
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.world import World
from vgpuctl.remote import answer
from vgpuctl.remote.channel import SshSession
from vgpuctl.remote.ran import Asked, Watch
from vgpuctl.value import replace

CAPABILITIES = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><domain>kvm</domain>
<os supported='yes'><enum name='firmware'><value>efi</value></enum><loader supported='yes'><enum name='secure'>
<value>yes</value></enum></loader></os><devices><tpm supported='yes'><enum name='model'><value>tpm-crb</value></enum>
<enum name='backendModel'><value>emulator</value></enum></tpm></devices></domainCapabilities>"""


class Changed:
    """A hypervisor that says something else of one domain, and the same each time; all else is the simulator's."""

    def __init__(self, rng: Random, real: Any) -> None:
        self._rng = rng
        self._real = real
        self._made: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _other(self, xml: str) -> str:
        if xml not in self._made:
            self._made[xml] = odd.xml_text(self._rng, xml)
        return self._made[xml]

    def _changed(self, record: DomainRecord) -> DomainRecord:
        if record.name != "vdi-1":
            return record
        live = record.live_xml
        return replace(record, xml=self._other(record.xml), live_xml=None if live is None else self._other(live))

    def domains(self) -> tuple[DomainRecord, ...]:
        return tuple(self._changed(record) for record in self._real.domains())

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        found = self._real.find_domain(name_or_uuid)
        return None if found is None else self._changed(found)

    def definition(self, uuid: str) -> str:
        return self._other(self._real.definition(uuid))


def prepared(directory: Path) -> None:
    """Make the host that every case of `damaged` gets a copy of."""
    host = open_host(directory)
    for name in ("vdi-1", "vdi-2"):
        create(host.world, wish("A100-4C", name=name))


def damaged(rng: Random, place: Path) -> object:
    """Ask something of a host of which libvirt shows one domain changed; or read another of libvirt's documents."""
    if rng.random() < 0.1:
        root = documents.parsed(odd.xml_text(rng, CAPABILITIES))
        return capabilities.capabilities_of(root, kvm=True, keys=True)
    host = open_host(place / "host")
    world = replace(host.world, hypervisor=Changed(rng, host.world.hypervisor))
    result = rng.choice(ACTS)(world)
    if isinstance(result, dict) and "stumbled" in json.dumps(result):
        raise AssertionError(json.dumps(result))
    _others(host)
    return result


def _others(host: Host) -> None:
    """See that the VM beside it is as it was."""
    record = host.world.hypervisor.find_domain("vdi-2")
    assert record is not None, "the VM beside it is gone"
    assert record.live_xml is not None, "the VM beside it was stopped"


def _moves(world: World) -> object:
    return moves.defragment(world, most=None, yes=False, wait_seconds=1, progress=Silent())


ACTS: Sequence[Callable[[World], object]] = (
    queries.list_gpus,
    queries.list_vms,
    queries.list_profiles,
    lambda world: queries.explain(world, "A100-4C"),
    lambda world: queries.show_vm(world, "vdi-1"),
    lambda world: guest.console(world, "vdi-1"),
    lambda world: guest.address(world, "vdi-1"),
    export_host,
    list_images,
    diagnose.diagnose,
    mend,
    lambda world: create(world, wish("A100-4C", name="vdi-3")),
    lambda world: start(world, "vdi-1"),
    lambda world: stop(world, "vdi-1"),
    lambda world: delete(world, "vdi-1"),
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
    """A transport and its channel: a command that prints these bytes and ends."""

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
    """Judge what a played host prints, and show its error as the command here does."""
    document = odd.changed(rng, rng.choice((DOCUMENT, FAILURE)))
    printed = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    noise = rng.choice((b"", b"Welcome\n", b"\xff\0\n" * 100, b"x" * (2 << 20), b"vgpuctl-over-ssh -1\n"))
    begun = rng.choice((BEGUN, BEGUN, BEGUN, b"", b"vgpuctl-over-ssh " + b"9" * 5000 + b"\n"))
    ways = (printed, printed[: rng.randrange(len(printed))], b"[" * 5000, b"x" * (20 << 20), b'{"a":' * 3000, b"\xff")
    out = noise + begun + rng.choice((printed, printed, rng.choice(ways)))
    err = rng.choice((b"", b"a line\n", b"\x1b[2J\n" * 50_000, b"x" * (4 << 20), b"\xff\n"))
    channel = Channel(out, err, rng.choice((0, 0, 1, 4, 127, 255, -1)))
    told: list[str] = []
    session = SshSession("gpu-01", "root", channel, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(Asked(("list-vms",)), Watch(time.monotonic() + 60, told.append, lambda: 0))
    finally:
        session.close()
    assert sum(map(len, told)) < 8 << 20, "more of stderr is shown than anybody reads"
    return _shown(rng, answer.judge(ran, "gpu-01", changes=rng.random() < 0.5))


def _shown(rng: Random, judged: answer.Answer) -> object:
    """Print it as a command on that host prints it here."""
    from vgpuctl.cli import afar_result
    from vgpuctl.cli.settings import Settings
    from vgpuctl.remote.crowd import Reply
    from vgpuctl.remote.target import Target

    settings = Settings()
    settings.kind, settings.json = rng.choice(("list-vms", "create-vm")), rng.random() < 0.5
    reply = Reply(Target("gpu-01", "gpu-01"), 0.1, judged)
    return afar_result.publish_one(settings, reply, 0)
