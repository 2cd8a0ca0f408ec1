# SPDX-License-Identifier: Apache-2.0
"""Pages: unknown is `?`, nothing is `-`, and everything but the result goes to stderr."""

from __future__ import annotations

from typing import Any

import pytest

from vgpuctl.cli import pages
from vgpuctl.cli.tables import render_plain


def vgpu(**more: Any) -> dict[str, Any]:
    return {
        "carrier": "0000:3b:00.4", "profile": "A100-4C", "gpu": "0000:3b:00.0", "function": "0000:3b:00.4",
        "backend": "vendor-vf", "framebuffer_mib": 4096, "vm": "vdi-001", "owner": "managed", "present": True,
        "reason": None, **more,
    }  # fmt: skip


GPU: dict[str, Any] = {
    "address": "0000:3b:00.0", "model": "NVIDIA A100-PCIE-40GB", "backend": "vendor-vf", "mode": "vgpu",
    "driver": "nvidia", "framebuffer_mib": 40960, "numa_node": 0, "iommu_group": None,
    "vfs": {"total": 16, "enabled": 16, "used": 2},
    "vgpus": [vgpu(), vgpu(owner="unmanaged", vm=None, profile=None)], "problems": ["a fan is loud"],
}  # fmt: skip
VM: dict[str, Any] = {
    "name": "vdi-001", "uuid": "6f1c", "state": "running", "owner": "managed", "record": "ready",
    "memory_mib": 4096, "vcpus": 2, "firmware": "uefi", "networks": ["default"], "mac_addresses": [],
    "vgpus": [vgpu()], "disks": [{"path": "/d/a.qcow2", "size_bytes": 40 << 30, "base": "/d/base.qcow2"}],
}  # fmt: skip


def text(kind: str, data: Any) -> str:
    return render_plain(pages.page(kind, data).blocks)


def test_gpus() -> None:
    bare = {**GPU, "address": "mtty", "backend": None, "driver": None, "framebuffer_mib": None,
            "vfs": {"total": 0, "enabled": 0, "used": 0}, "vgpus": [], "problems": []}  # fmt: skip
    page = pages.page("list-gpus", [GPU, bare])
    assert render_plain(page.blocks) == (
        "ADDRESS       MODEL                  BACKEND    MODE  DRIVER  MEMORY  NUMA  IOMMU"
        "  VFS            VGPUS\n"
        "0000:3b:00.0  NVIDIA A100-PCIE-40GB  vendor-vf  vgpu  nvidia  40 GiB     0      -"
        "  16/16, 2 used  2 (1 unmanaged)\n"
        "mtty          NVIDIA A100-PCIE-40GB  -          vgpu  -            ?     0      -  -              0\n"
    )
    assert page.stderr_lines == ["0000:3b:00.0: a fan is loud"]


def test_a_gpu_with_mixed_sizes_or_mig_says_so_and_where_each_vgpu_is() -> None:
    mixed = {**GPU, "mixed_size": True, "mig": None, "vgpus": [vgpu(placement_id=24), vgpu(vm="vdi-002")]}
    output = text("show-gpu", mixed)
    assert "sizes:       mixed\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed  placement 24\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-002  managed  -\n" in output
    instance = {"id": 3, "profile": "3g.20gb", "start": 4, "size": 4}
    mig = {"enabled": True, "pending": False, "instances": [instance]}
    output = text("show-gpu", {**GPU, "mig": mig, "mixed_size": False, "vgpus": [vgpu(gpu_instance_id=3)]})
    assert "on, off after a reset of the GPU\n" in output
    assert "3: 3g.20gb, memory slices 4:4\n" in output
    assert "managed  GPU instance 3\n" in output
    off = text("show-gpu", {**GPU, "mig": {"enabled": False, "pending": False, "instances": []}})
    assert "WHERE" not in off
    assert "mig" not in off
    assert "A100-4C on GPU 0000:3b:00.0, placement 24 (0000:3b:00.4)" in text(
        "show-vm", {**VM, "vgpus": [vgpu(placement_id=24)]}
    )


def test_one_gpu() -> None:
    types = [{"profile": "A100-4C", "name": "GRID A100-4C", "type_id": "468", "framebuffer_mib": 4096,
              "max_per_gpu": None, "free": 8}]  # fmt: skip
    output = text("show-gpu", {**GPU, "types": types})
    assert "problem:     a fan is loud\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed\n" in output
    assert "0000:3b:00.4  ?        -        unmanaged\n" in output
    assert "A100-4C  468    4 GiB        ?     8\n" in output
    leaked = vgpu(owner="leaked", reason="its VM is gone")
    assert "its VM is gone" in text("show-gpu", {**GPU, "vgpus": [leaked]})


def test_profiles() -> None:
    row = {
        "profile": "A100-4C",
        "name": "GRID A100-4C",
        "type_id": None,
        "framebuffer_mib": 512,
        "max_per_gpu": None,
        "free": None,
        "gpus": [{"address": "a", "free": None}, {"address": "b", "free": 0}],
    }
    assert text("list-profiles", [row, {**row, "free": 0, "gpus": []}]) == (
        "PROFILE  TYPE   MEMORY  MAX/GPU  FREE  WHERE\n"
        "A100-4C  ?     512 MiB        ?     ?  a: ?\n"
        "A100-4C  ?     512 MiB        ?     0  -\n"
    )  # fmt: skip


def test_explain_shortens_long_lists() -> None:
    many = [vgpu(vm=f"vdi-{n:03}") for n in range(1, 11)]
    gpu = {
        "address": "a", "model": "A100", "free": 0, "rule": "one size", "reasons": ["10 of 10 in use"], "vgpus": many,
        "in_the_way": [],
    }  # fmt: skip
    assert text("explain", {"profile": "A100-4C", "free": 0, "moves": [], "gpus": [gpu]}) == (
        "A100-4C: 0 more on this host\n\na  A100: 0 more\n  rule: one size\n  10 of 10 in use\n"
        "  10 in use: vdi-001, vdi-002, vdi-003, vdi-004, vdi-005, vdi-006 … vdi-010\n"
    )
    assert text("explain", {"profile": "A100-4C", "free": None, "moves": [], "gpus": []}) == (
        "A100-4C: not known how many more, only trying tells\n"
    )


def test_moves_of_one_round_say_how_many_go_at_once() -> None:
    move = {
        "state": "running", "profile": "DC-24Q", "from_gpu": "a", "from_placement_id": 24, "to_gpu": "a",
        "to_placement_id": 48,
    }  # fmt: skip
    moves = [{"vm": f"vdi-{n}", "uuid": str(n), **move, "round": max(1, n - 1)} for n in (1, 2, 3)]
    assert text("plan-moves", {"moves": moves, "places": [], "fewest": True, "dry_run": True}) == (
        "3 VMs would be moved:\n"
        "  1  stop, move and start VM vdi-1: DC-24Q, a placement 24 -> a placement 48 (round 1: 2 at once)\n"
        "  2  stop, move and start VM vdi-2: DC-24Q, a placement 24 -> a placement 48 (round 1: 2 at once)\n"
        "  3  stop, move and start VM vdi-3: DC-24Q, a placement 24 -> a placement 48\n"
    )


def test_vms() -> None:
    assert text("list-vms", [VM, {**VM, "name": "other", "owner": "unmanaged", "vgpus": []}]) == (
        "NAME     STATE    OWNER      VGPUS                    UUID\n"
        "vdi-001  running  managed    A100-4C on 0000:3b:00.0  6f1c\n"
        "other    running  unmanaged  -                        6f1c\n"
    )


def test_duplicates_are_counted() -> None:
    assert pages.vgpus_text([vgpu(), vgpu()]) == "2 x A100-4C on 0000:3b:00.0"
    assert pages.shorten_names(["a", "b", "a"]) == "a (2), b"


def test_one_vm() -> None:
    output = text("show-vm", {**VM, "vgpus": [vgpu(present=False)]})
    assert "memory:   4 GiB\n" in output
    assert "vgpu:     A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4, missing)\n" in output
    assert "disk:     /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n" in output


def test_a_change_shows_what_is_there_now() -> None:
    done = {**VM, "steps": ["start"], "notes": [], "dry_run": False}
    assert text("create-vm", done) == (
        "vdi-001: running\n"
        "  vgpu  A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4)\n"
        "  disk  /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n"
    )
    assert text("ensure-vm", {**done, "steps": []}).endswith("  nothing to do\n")


def test_a_dry_run_shows_steps_and_sources() -> None:
    sources = {"memory": {"value": "4GiB", "source": "default"}, "disk": {"value": [], "source": "command-line"},
               "force": {"value": True, "source": "command-line"}}  # fmt: skip
    data = {**VM, "steps": ["make the disk", "start"], "notes": [], "dry_run": True, "sources": sources}
    assert text("create-vm", data) == (
        "would do:\n  1  make the disk\n  2  start\n\n"
        "FIELD   VALUE  SOURCE\nmemory  4GiB   default\ndisk    -      command line\nforce   yes    command line\n"
    )
    assert text("start-vm", {**VM, "steps": [], "notes": [], "dry_run": True}) == "nothing to do\n"


def test_passthrough_names_the_gpu_once() -> None:
    whole = vgpu(carrier="0000:3b:00.0", profile=None)
    assert "vgpu  GPU 0000:3b:00.0\n" in text(
        "create-vm", {**VM, "vgpus": [whole], "steps": ["x"], "notes": [], "dry_run": False}
    )


def test_reconcile() -> None:
    result = {"kind": "leaked", "what": "A100-4C on x: its VM is gone", "action": "remove it"}
    data = {"findings": [result], "steps": ["remove it"], "notes": [], "dry_run": False}
    assert text("reconcile", data) == "A100-4C on x: its VM is gone\n  remove it\n"
    assert text("reconcile", {**data, "dry_run": True}).endswith("\nwould do:\n  1  remove it\n")
    assert text("reconcile", {**data, "findings": [], "steps": []}) == "nothing to do\n"


@pytest.mark.parametrize("kind", ["list-gpus", "list-profiles", "list-vms"])
def test_an_empty_list_is_on_stderr(kind: str) -> None:
    page = pages.page(kind, [])
    assert not page.blocks
    assert page.stderr_lines[0].startswith("no ")


@pytest.mark.parametrize(("value", "shown"), [(None, "?"), (0, "0 MiB"), (1536, "1536 MiB"), (2048, "2 GiB")])
def test_sizes(value: int | None, shown: str) -> None:
    assert pages.mib(value) == shown
    assert pages.size(None if value is None else value << 20) == shown


def test_images() -> None:
    clone = {"path": "/d/a.qcow2", "vms": ["vdi-001"]}
    base = {"path": "/d/base.qcow2", "pool": None, "volume": None, "format": None, "size_bytes": None,
            "role": "base", "base": None, "vms": [],
            "children": [clone, {"path": "/d/x.qcow2", "vms": []}]}  # fmt: skip
    lost = {"path": "/d/x.qcow2", "pool": "default", "volume": "x.qcow2", "format": "qcow2", "size_bytes": 1 << 30,
            "role": "orphan", "base": "/d/base.qcow2", "vms": [], "children": []}  # fmt: skip
    page = pages.page("list-images", [base, lost])
    assert render_plain(page.blocks) == (
        "PATH           ROLE    POOL      SIZE  VMS  CLONES                  BASE\n"
        "/d/base.qcow2  base    -            ?  -    2: vdi-001, /d/x.qcow2  -\n"
        "/d/x.qcow2     orphan  default  1 GiB  -    -                       /d/base.qcow2\n"
    )
    assert page.stderr_lines == ["1 named like disks of vgpuctl, and no VM refers to them"]
    assert pages.page("list-images", []).stderr_lines


def test_a_console() -> None:
    screens = [
        {"type": "vnc", "listen": "127.0.0.1", "port": 5901, "tls_port": None, "socket": None, "password": False},
        {"type": "spice", "listen": "::", "port": 5902, "tls_port": 5903, "socket": None, "password": True},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": "/run/s", "password": None},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": None, "password": None},
    ]
    serial = [{"target": "serial", "terminal": None, "command": ["virsh", "console", "a b"]}]
    page = pages.page("console", {"name": "a b", "state": "running", "graphics": screens, "serial": serial})
    assert render_plain(page.blocks) == (
        "name:   a b\nstate:  running\nvnc:    127.0.0.1:5901, no password\n"
        "spice:  [::]:5902 and [::]:5903 (TLS), asks for a password\n"
        "vnc:    /run/s, password not known\nvnc:    no port yet, password not known\n"
        "serial: virsh console 'a b'\n"
    )
    assert len(page.stderr_lines) == 1
    assert pages.page("console", {"name": "x", "state": "running", "graphics": [], "serial": []}).stderr_lines
