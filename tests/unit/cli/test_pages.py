# SPDX-License-Identifier: Apache-2.0
"""Pages: unknown is `?`, nothing is `-`, and everything but the result, which is printed once, goes to stderr."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.cli.test_progress import Terminal
from vgpuctl.cli import listings, run, shown
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.listings import View
from vgpuctl.cli.output import render
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.schemas import result_type
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.result_reader import read_result
from vgpuctl.model.results.host import FindingResult, ReconcileResult


def vgpu(**more: Any) -> dict[str, Any]:
    return {
        "carrier": "0000:3b:00.4", "profile": "A100-4C", "gpu": "0000:3b:00.0", "function": "0000:3b:00.4",
        "backend": "vendor-vf", "framebuffer_mib": 4096, "vm": "vdi-001", "ownership": "managed", "present": True,
        "reason": None, "name": None, "placement_id": None, "gpu_instance_id": None, "companions": [],
        "attached": None, "other_vms": [], **more,
    }  # fmt: skip


GPU: dict[str, Any] = {
    "address": "0000:3b:00.0", "model": "NVIDIA A100-PCIE-40GB", "backend": "vendor-vf", "mode": "vgpu",
    "driver": "nvidia", "framebuffer_mib": 40960, "numa_node": 0, "iommu_group": None, "pcie_switch": None,
    "vfs": {"total": 16, "enabled": 16, "used": 2},
    "vgpus": [vgpu(), vgpu(ownership="unmanaged", vm=None, profile=None)], "problems": ["a fan is loud"],
    "desired_mode": None, "cordoned": False, "allowed_profiles": None, "reserved_for": [], "mixed_size": None,
    "scheduler": None, "render_node": None, "draws_for": [],
}  # fmt: skip
DETAILS: dict[str, Any] = {
    **GPU, "console": [], "group_members": [], "functions": [], "types": [], "mig": None,
    "scheduler_limits": None, "scheduler_at_load": None, "scheduler_next": None, "shares": [],
}  # fmt: skip
VM: dict[str, Any] = {
    "name": "vdi-001", "uuid": "6f1c", "state": "running", "ownership": "managed", "record": "ready",
    "owner": "cad-team", "labels": {"team": "cad"},
    "memory_mib": 4096, "vcpus": 2, "firmware": "uefi",
    "networks": [{"network": "default", "bridge": None, "vlan": None, "model": "virtio", "mac": None}],
    "hugepages": "none", "pinned_cpus": None, "memory_nodes": None, "display": False,
    "vgpus": [vgpu()], "reserve": None, "spread_group": None, "planned": {}, "image": None, "cloud_init": None,
    "network_config": None,
    "guest_sharing": None,
    "license": None,
    "guest_driver": None,
    "k8s_join": None,
    "domain_join": None,
    "guest_helper": None,
    "off_after_setup": None,
    "prepared": None,
    "stop_reason": None, "render_gpu": None,
    "disks": [
        {"path": "/d/a.qcow2", "device": "disk", "size_bytes": 40 << 30, "base": "/d/base.qcow2", "copied_from": None,
         "made": True},
    ],
}  # fmt: skip


def result(kind: str, data: Any) -> Outcome | QueryResult:
    """Return the result that a command printed as this JSON."""
    return read_result(result_type(kind), {"data": data})


def text(kind: str, data: Any) -> str:
    return render(listings.page(kind, result(kind, data)).blocks)


def test_gpus() -> None:
    bare = {**GPU, "address": "mtty", "backend": None, "driver": None, "framebuffer_mib": None,
            "vfs": {"total": 0, "enabled": 0, "used": 0}, "vgpus": [], "problems": []}  # fmt: skip
    page = listings.page("list-gpus", result("list-gpus", [GPU, bare]))
    assert render(page.blocks) == (
        "ADDRESS       MODEL                  MODE  MEMORY   USED    FREE  VGPUS\n"
        "0000:3b:00.0  NVIDIA A100-PCIE-40GB  vgpu  40 GiB  8 GiB  32 GiB  2 (1 unmanaged)\n"
        "mtty          NVIDIA A100-PCIE-40GB  vgpu       ?      0       ?  0\n"
    )
    wide = listings.page("list-gpus", result("list-gpus", [GPU, bare]), View(wide=True))
    assert render(wide.blocks).splitlines()[1:] == [
        "0000:3b:00.0  NVIDIA A100-PCIE-40GB  vgpu  40 GiB  8 GiB  32 GiB  2 (1 unmanaged)  16/16, 2 used  vendor-vf"
        "  nvidia     0      -  -       -",
        "mtty          NVIDIA A100-PCIE-40GB  vgpu       ?      0       ?  0                -              -"
        "          -          0      -  -       -",
    ]
    assert page.stderr_lines == ["0000:3b:00.0: a fan is loud"]


def test_a_gpu_with_mixed_sizes_or_mig_says_so_and_where_each_vgpu_is() -> None:
    mixed = {**DETAILS, "mixed_size": True, "mig": None, "vgpus": [vgpu(placement_id=24), vgpu(vm="vdi-002")]}
    output = text("show-gpu", mixed)
    assert "mode:        vgpu, mixed sizes\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed    placement 24\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-002  managed    -\n" in output
    instance = {"id": 3, "profile": "3g.20gb", "start": 4, "size": 4}
    mig = {"enabled": True, "pending": False, "instances": [instance]}
    output = text("show-gpu", {**DETAILS, "mig": mig, "mixed_size": False, "vgpus": [vgpu(gpu_instance_id=3)]})
    assert "on, off after a reset of the GPU\n" in output
    assert "3: 3g.20gb, memory slices 4:4\n" in output
    assert "managed    GPU instance 3\n" in output
    off = text("show-gpu", {**DETAILS, "mig": {"enabled": False, "pending": False, "instances": []}})
    assert "WHERE" not in off
    assert "mig" not in off
    assert "A100-4C on GPU 0000:3b:00.0, placement 24 (0000:3b:00.4)" in text(
        "show-vm", {**VM, "vgpus": [vgpu(placement_id=24)]}
    )


def test_one_gpu() -> None:
    types = [{"profile": "A100-4C", "name": "GRID A100-4C", "type_id": "468", "framebuffer_mib": 4096,
              "max_per_gpu": None, "free": 8, "free_at_least": 8, "gpu_instance_profile": None}]  # fmt: skip
    output = text("show-gpu", {**DETAILS, "types": types})
    assert "problem:     a fan is loud\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed\n" in output
    assert "0000:3b:00.4  ?        -        unmanaged\n" in output
    assert "A100-4C  468    4 GiB        ?     8\n" in output
    leaked = vgpu(ownership="leaked", reason="its VM is gone")
    assert "its VM is gone" in text("show-gpu", {**DETAILS, "vgpus": [leaked]})


def test_profiles() -> None:
    row: dict[str, Any] = {
        "profile": "A100-4C",
        "name": "GRID A100-4C",
        "type_id": None,
        "framebuffer_mib": 512,
        "max_per_gpu": None,
        "free": None,
        "free_at_least": 0,
        "excludes": None,
        "gpus": [{"address": "a", "free": None, "free_at_least": 0}, {"address": "b", "free": 0, "free_at_least": 0}],
    }
    assert text("list-profiles", [row, {**row, "free": 0, "gpus": []}]) == (
        "PROFILE  TYPE   MEMORY  MAX/GPU  FREE  GPU\n"
        "A100-4C  ?     512 MiB        ?     ?  a\n"
        "A100-4C  ?     512 MiB        ?     0  -\n"
    )  # fmt: skip


def test_explain_shortens_long_lists() -> None:
    many = [vgpu(vm=f"vdi-{n:03}") for n in range(1, 11)]
    gpu = {
        "address": "a", "model": "A100", "free": 0, "free_at_least": 0, "rule": "one size",
        "reasons": ["10 of 10 in use"], "vgpus": many, "in_the_way": [],
    }  # fmt: skip
    assert text("explain", {"profile": "A100-4C", "free": 0, "free_at_least": 0, "moves": [], "gpus": [gpu]}) == (
        "A100-4C: 0 more on this host\n\na  A100: 0 more\n  rule: one size\n  10 of 10 in use\n"
        "  10 in use: vdi-001, vdi-002, vdi-003, vdi-004, vdi-005, vdi-006 … vdi-010\n"
    )
    assert text("explain", {"profile": "A100-4C", "free": None, "free_at_least": 0, "moves": [], "gpus": []}) == (
        "A100-4C: unknown how many more fit: the driver does not report it\n"
    )


def test_moves_are_numbered_with_the_places_that_are_given_up() -> None:
    move = {
        "carrier": "c", "state": "running", "profile": "DC-24Q", "from_gpu": "a", "from_placement_id": 24,
        "to_gpu": "a", "to_placement_id": 48,
    }  # fmt: skip
    moves = [{"vm": f"vdi-{n}", "uuid": str(n), **move, "waits": n == 2, "round": n + 1} for n in (1, 2)]
    steps = ["leave", "first", "second"]
    for command, line in (("plan-moves", "2 VMs would be moved:\n"), ("move-vms", "2 VMs moved:\n")):
        work = {"steps": steps, "notes": [], "dry_run": command == "plan-moves"}
        data = {"moves": moves, "places": [], "fewest": True, "source_gpu": None, "stays": [], **work}
        assert text(command, data) == f"{line}  1  leave\n  2  first\n  3  second\n"
    assert text("explain", {"profile": "DC-24Q", "free": 0, "free_at_least": 0, "moves": moves, "gpus": []}).endswith(
        "one more fits after 2 moves (vgpuctl move-vms --profile DC-24Q):\n"
        "  stop, move and start VM vdi-1: DC-24Q, a placement 24 -> a placement 48\n"
        "  stop, move and start VM vdi-2: DC-24Q, a placement 24 -> a placement 48 (it gives up its place first)\n"
    )


def test_vms() -> None:
    assert text("list-vms", [VM, {**VM, "name": "other", "owner": None, "ownership": "unmanaged", "vgpus": []}]) == (
        "NAME     STATE    OWNER     OWNERSHIP  VGPUS\n"
        "vdi-001  running  cad-team  managed    A100-4C on 0000:3b:00.0\n"
        "other    running  -         unmanaged  -\n"
    )


def test_duplicates_are_counted() -> None:
    assert (
        shown.vgpus_text(result("list-vms", [{**VM, "vgpus": [vgpu(), vgpu()]}]).data[0].vgpus)
        == "2 x A100-4C on 0000:3b:00.0"
    )
    assert shown.shorten_names(["a", "b", "a"]) == "a (2), b"


def test_one_vm() -> None:
    output = text("show-vm", {**VM, "vgpus": [vgpu(present=False)]})
    assert "memory:    4 GiB\n" in output
    assert "owner:     cad-team\n" in output
    assert "labels:    team=cad\n" in output
    assert "vgpu:      A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4, missing)\n" in output
    assert "disk:      /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n" in output
    assert "hugepages" not in output
    output = text("show-vm", {**VM, "spread_group": "lab", "hugepages": "1GiB", "display": True})
    assert "spread group: lab\nhugepages:    1GiB\ndisplay:      the first" in output


def test_the_software_of_a_running_guest() -> None:
    software = {"driver": "582.53", "release": "19.5", "host_release": "19.6", "fit": "supported",
                "license": "licensed", "license_expiry": "2026-11-28T08:00:00Z"}  # fmt: skip
    output = text("show-vm", {**VM, "guest_software": software})
    assert "guest driver: 582.53 (vGPU 19.5); the host's driver supports it\n" in output
    assert "license:      licensed until 2026-11-28T08:00:00Z\n" in output
    newer = {**software, "release": None, "fit": "too-new", "license": None, "license_expiry": None}
    output = text("show-vm", {**VM, "guest_software": newer})
    assert "guest driver: 582.53; newer than the host's: the vGPU does not start\n" in output
    assert "license" not in output


def test_a_change_shows_what_is_there_now() -> None:
    done = {**VM, "steps": ["start"], "notes": [], "dry_run": False}
    assert text("create-vm", done) == (
        "vdi-001: running\n"
        "  vgpu  A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4)\n"
        "  disk  /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n"
        "  net   default, virtio, no address yet\n"
    )
    assert text("ensure-vm", {**done, "steps": []}).endswith("  nothing to do\n")


def test_a_dry_run_shows_steps_and_sources() -> None:
    sources = {"memory": {"value": "4GiB", "source": "default"}, "disk": {"value": [], "source": "given"},
               "force": {"value": True, "source": "given"}}  # fmt: skip
    data = {**VM, "steps": ["make the disk", "start"], "notes": [], "dry_run": True, "sources": sources}
    assert text("create-vm", data) == (
        "would do:\n  1  make the disk\n  2  start\n\n"
        "FIELD   VALUE  SOURCE\nmemory  4GiB   default\ndisk    -      given\nforce   yes    given\n"
    )
    assert text("start-vm", {**VM, "steps": [], "notes": [], "dry_run": True}) == "nothing to do\n"


def test_passthrough_names_the_gpu_once() -> None:
    whole = vgpu(carrier="0000:3b:00.0", profile=None)
    assert "  gpu   0000:3b:00.0\n" in text(
        "create-vm", {**VM, "vgpus": [whole], "steps": ["x"], "notes": [], "dry_run": False}
    )


def test_reconcile() -> None:
    leaked = {"kind": "leaked", "what": "A100-4C on x: its VM is gone", "action": "remove it"}
    data = {"findings": [leaked], "steps": ["remove it"], "notes": [], "dry_run": False}
    assert text("reconcile-host", data) == "A100-4C on x: its VM is gone\n  remove it\n"
    assert text("reconcile-host", {**data, "dry_run": True}).endswith("\nwould do:\n  1  remove it\n")
    assert text("reconcile-host", {**data, "findings": [], "steps": []}) == "nothing to do\n"


@pytest.mark.parametrize("kind", ["list-gpus", "list-profiles", "list-vms"])
def test_an_empty_list_is_on_stderr(kind: str) -> None:
    page = listings.page(kind, result(kind, []))
    assert not page.blocks
    assert page.stderr_lines[0].startswith("no ")


@pytest.mark.parametrize(("value", "text"), [(None, "?"), (0, "0 MiB"), (1536, "1536 MiB"), (2048, "2 GiB")])
def test_sizes(value: int | None, text: str) -> None:
    assert shown.mib(value) == text
    assert shown.size(None if value is None else value << 20) == text


def test_unknown_vms_are_not_called_none() -> None:
    assert listings.page("list-vms", QueryResult((), ("VMs are unknown: no libvirt",))) == listings.Page()


def test_images() -> None:
    clone = {"path": "/d/a.qcow2", "vms": ["vdi-001"]}
    base = {"path": "/d/base.qcow2", "pool": None, "volume": None, "format": None, "size_bytes": None,
            "role": "base", "base": None, "vms": [],
            "children": [clone, {"path": "/d/x.qcow2", "vms": []}]}  # fmt: skip
    lost = {"path": "/d/x.qcow2", "pool": "default", "volume": "x.qcow2", "format": "qcow2", "size_bytes": 1 << 30,
            "role": "orphan", "base": "/d/base.qcow2", "vms": [], "children": []}  # fmt: skip
    page = listings.page("list-images", result("list-images", [base, lost]))
    assert render(page.blocks) == (
        "IMAGE          ROLE     SIZE  CLONES  VMS\n"
        "/d/base.qcow2  base        ?       2  -\n"
        "x.qcow2        orphan  1 GiB       0  -\n"
    )
    wide = render(listings.page("list-images", result("list-images", [base, lost]), View(wide=True)).blocks)
    assert "-              /d/base.qcow2  vdi-001, /d/x.qcow2\n" in wide

    assert page.stderr_lines == ["1 named like disks of vgpuctl, and no VM refers to them"]
    assert listings.page("list-images", result("list-images", [])).stderr_lines


def test_a_console() -> None:
    screens = [
        {"type": "vnc", "listen": "127.0.0.1", "port": 5901, "tls_port": None, "socket": None, "password": False},
        {"type": "spice", "listen": "::", "port": 5902, "tls_port": 5903, "socket": None, "password": True},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": "/run/s", "password": None},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": None, "password": None},
    ]
    serial = [{"target": "serial", "terminal": None, "command": ["virsh", "console", "a b"]}]
    vm = {"name": "a b", "uuid": "6f1c", "state": "running"}
    page = listings.page("show-console", result("show-console", {**vm, "graphics": screens, "serial": serial}))
    assert render(page.blocks) == (
        "name:   a b\nstate:  running\nvnc:    127.0.0.1:5901, no password\n"
        "spice:  [::]:5902 and [::]:5903 (TLS), asks for a password\n"
        "vnc:    /run/s, password not known\nvnc:    no port yet, password not known\n"
        "serial: virsh console 'a b'\n"
    )
    assert [line.partition(" ")[0] for line in page.stderr_lines] == ["the", "from"]
    assert listings.page("show-console", result("show-console", {**vm, "graphics": [], "serial": []})).stderr_lines


RECONCILED = Outcome(
    True,
    ReconcileResult((FindingResult("leaked", "a claim", "removed"),)),
    ("remove it",),
    ("libvirt was not asked",),
    ("no system is on its disk",),
)
GPUS = CommandOutput(result("list-gpus", [GPU]))


def test_text_on_stdout_and_the_rest_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.perform(Settings(), "reconcile-host", lambda guard: CommandOutput(RECONCILED)) == 0
    captured = capsys.readouterr()
    assert captured.out == "a claim\n  removed\n"
    assert captured.err == "warning: libvirt was not asked\nnote: no system is on its disk\n"
    assert run.perform(Settings(), "list-gpus", lambda guard: GPUS) == 0
    assert capsys.readouterr().err == "0000:3b:00.0: a fan is loud\n"


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert run.perform(Settings(), "list-gpus", lambda guard: GPUS) == 0
    assert "NVIDIA A100-PCIE-40GB" in screen.getvalue()


def test_a_page_that_cannot_be_made_is_a_bug_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.perform(Settings(), "list-gpus", lambda guard: CommandOutput(QueryResult(({},)))) == 1
    assert "[bug]" in capsys.readouterr().err


def test_another_thread_has_no_signals_to_handle(capsys: pytest.CaptureFixture[str]) -> None:
    statuses: list[int] = []
    thread = threading.Thread(
        target=lambda: statuses.append(
            run.perform(Settings(), "list-vms", lambda guard: CommandOutput(QueryResult(())))
        )
    )
    thread.start()
    thread.join()
    assert statuses == [0]
