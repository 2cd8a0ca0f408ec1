# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id; the hook, the unit that restores, and libvirt-guests."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    assert_verdict,
    case,
    finding_text,
    run_check,
)
from tests.values import A4C, MACHINE, a100, assigned, snapshot, t4, vm
from vgpuctl.doctor.check import FileContent
from vgpuctl.doctor.own_files import (
    HOOK_DIRECTORY,
    HOST_FILE,
    LIBVIRT_GUESTS_CONFIGS,
    LIBVIRT_GUESTS_UNIT,
    LIBVIRT_HOOK,
    MACHINE_ID,
    RESTORE_UNIT,
    RUN_DIRECTORY,
    VGPUCTL_HOOK,
    WANTS_DIRECTORY,
)
from vgpuctl.model.gpu import Backend, GpuMode, VgpuType
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.value import replace

GPU = a100()
RUNS, HELD = FilePermissions(0o755, 0, 0), FilePermissions(0o644, 0, 0)
HOST = snapshot(GPU, vms=(vm(1, assigned(GPU, A4C)),))
OWN_HOOK = {HOOK_DIRECTORY: ("vgpuctl",)}
ENABLED = {WANTS_DIRECTORY: (RESTORE_UNIT,)}
GUESTS = {WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,)}
CARD = replace(a100(), types=(VgpuType("nvidia-468", "GRID A100-4C", "A100-4C", 4096, max_per_gpu=10),))
PROFILES = "version: 1\ngpus:\n  all:\n    profiles: [A100-4C, A100-44C]\n  T4: {profiles: [T4-1Q]}\n"


def directory(verdict, mode, owner, group):
    permissions = FilePermissions(mode, owner, group)
    words = f"mode {mode:04o}, owner {owner}"
    return case("run-directory", verdict, words, permissions={RUN_DIRECTORY: permissions})


def host_file(verdict, text, *words, mode=0o644, seen=None):
    permissions = {HOST_FILE: FilePermissions(mode, 0, 0)}
    return case("host-file", verdict, *words, snapshot=seen, files={HOST_FILE: text}, permissions=permissions)


def machine_id(verdict, text):
    return case("machine-id", verdict, files={MACHINE_ID: text})


def hook(verdict, *words, permissions=None, **seen):
    return case("start-hook", verdict, *words, snapshot=HOST, permissions=permissions or {}, **seen)


def unit(verdict, *words, **folders):
    return case("restore-unit", verdict, *words, snapshot=HOST, **folders)


CASES = {
    "root alone writes claims": directory(OK, 0o700, 0, 0),
    "others may read claims": directory(OK, 0o755, 0, 0),
    "a group writes claims": directory(FAIL, 0o770, 0, 100),
    "everybody writes claims": directory(FAIL, 0o777, 0, 0),
    "somebody else owns the claims": directory(FAIL, 0o700, 1000, 0),
    "no run directory": case("run-directory", OK),
    "claims that cannot be read": case(
        "run-directory", UNKNOWN, permissions={RUN_DIRECTORY: FilePermissions(0o700, 0, 0)},
        claims_problem="Permission denied",
    ),
    "no host.yaml": host_file(OK, FileContent()),
    "a host.yaml": host_file(OK, "version: 1\n"),
    "a host.yaml that everybody writes": host_file(WARN, "version: 1\n", mode=0o666),
    "a host.yaml of comments": host_file(FAIL, "# version: 1\n"),
    "an invalid host.yaml has its line": host_file(FAIL, "version: 1\ngpu: {}\n", f"{HOST_FILE}:2"),
    "a host.yaml for root alone": host_file(
        UNKNOWN, FileContent(problem=f"{HOST_FILE}: Permission denied"), mode=0o600
    ),
    "a directory as host.yaml": host_file(FAIL, FileContent(problem=f"{HOST_FILE}: Is a directory"), mode=0o755),
    "a profile that no GPU here can ever offer, with its line": host_file(
        WARN, PROFILES,
        f"{HOST_FILE}:4: gpus.all: {CARD.address} can never offer the profile A100-44C (did you mean A100-4C?)",
        seen=snapshot(CARD),
    ),
    "types that are not known": host_file(
        OK, PROFILES, seen=snapshot(replace(CARD, types=(), model="10de:20f1", vendor_id="10de", device_id="20f1"))
    ),
    "a machine id": machine_id(OK, f"{MACHINE}\n"),
    "a machine id that systemd has not written": machine_id(FAIL, "uninitialized\n"),
    "an empty machine id": machine_id(FAIL, ""),
    "no machine id": machine_id(FAIL, FileContent()),
    "a machine id that cannot be read": machine_id(UNKNOWN, FileContent(problem="Permission denied")),
    "a hook in qemu.d": hook(OK, folders=OWN_HOOK, permissions={VGPUCTL_HOOK: RUNS}),
    "a hook in libvirt's file": hook(
        OK, files={LIBVIRT_HOOK: "#!/bin/sh\nexec vgpuctl hook\n"}, permissions={LIBVIRT_HOOK: RUNS}
    ),
    "no hook": hook(
        WARN, "vgpuctl install-host", files={LIBVIRT_HOOK: "#!/bin/sh\n"}, folders={HOOK_DIRECTORY: ("other",)}
    ),
    "a hook that libvirt may not run": hook(
        FAIL, f"chmod 755 {VGPUCTL_HOOK}", folders=OWN_HOOK, permissions={VGPUCTL_HOOK: HELD}
    ),
    "hooks that cannot be read": hook(
        UNKNOWN, files={LIBVIRT_HOOK: FileContent(problem=f"{LIBVIRT_HOOK}: Permission denied")}
    ),
    "the unit in /etc": unit(OK, folders={"/etc/systemd/system": (RESTORE_UNIT,), **ENABLED}),
    "the unit in /usr": unit(OK, folders={"/usr/lib/systemd/system": (RESTORE_UNIT,), **ENABLED}),
    "a unit that is not enabled": unit(
        WARN, f"systemctl enable {RESTORE_UNIT}", folders={"/etc/systemd/system": (RESTORE_UNIT,), **GUESTS}
    ),
    "no unit": unit(WARN, "vgpuctl install-host", folders={"/etc/systemd/system": ()}),
    "whole GPUs need no hook": case(
        "start-hook", NOT_APPLICABLE, snapshot=snapshot(t4(backend=Backend.PASSTHROUGH))
    ),
    "plain VFs of host.yaml without the unit": case(
        "restore-unit", WARN, "a reboot removes VFs",
        snapshot=snapshot(t4(backend=Backend.SRIOV_VF, vendor_id="8086", desired_mode=GpuMode.SRIOV)),
    ),
    "whole GPUs need no unit": case(
        "restore-unit", NOT_APPLICABLE, snapshot=snapshot(t4(backend=Backend.PASSTHROUGH))
    ),
    "libvirt-guests that is not enabled": case(
        "libvirt-guests", OK, snapshot=HOST, files={LIBVIRT_GUESTS_CONFIGS[0]: "ON_SHUTDOWN=suspend\n"}
    ),
    "libvirt-guests without a VM with a vGPU": case(
        "libvirt-guests", NOT_APPLICABLE, snapshot=snapshot(GPU, vms=(vm(1),)), folders=GUESTS
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ON_SHUTDOWN=shutdown\n", OK),
        ("ON_SHUTDOWN=suspend\nON_SHUTDOWN='shutdown'\n", OK),
        ('ON_SHUTDOWN="shutdown"   # suspend breaks VMs with a GPU\n', OK),
        ("  export ON_SHUTDOWN=shut'down'; PARALLEL_SHUTDOWN=4\n", OK),
        ("ON_SHUTDOWN=suspend\n", WARN),
        ("#ON_SHUTDOWN=shutdown\n", WARN),
        ("", WARN),
        ("ON_SHUTDOWN=\n", WARN),
        ("ON_SHUTDOWN = shutdown\n", WARN),
        ("ON_SHUTDOWN=SHUTDOWN\n", WARN),
        ("ON_SHUTDOWN=shutdown\nON_SHUTDOWN=suspend # again\n", WARN),
        ("ON_SHUTDOWN=shutdown#now\n", WARN),
        ("ON_SHUTDOWN=$ACTION\n", UNKNOWN),
    ],
)
@pytest.mark.parametrize("path", LIBVIRT_GUESTS_CONFIGS)
def test_what_libvirt_guests_does_at_shutdown_is_what_its_shell_reads(path, text, verdict):
    result = run_check("libvirt-guests", HOST, files={path: text}, folders=GUESTS)
    assert result.verdict is verdict
    assert path in finding_text(result)


@pytest.mark.parametrize(("folder", "number"), [("/etc/sysconfig", 0), ("/etc/conf.d", 1), ("/etc/default", 2)])
def test_without_a_file_libvirt_guests_suspends(folder, number):
    folders = {**GUESTS, folder: ()}
    result = run_check("libvirt-guests", HOST, folders=folders)
    assert result.verdict is WARN
    assert "ON_SHUTDOWN is suspend" in result.evidence[0]
    assert result.fix == f"echo ON_SHUTDOWN=shutdown >> {LIBVIRT_GUESTS_CONFIGS[number]}"


def test_two_files_must_say_the_same():
    first, second = LIBVIRT_GUESTS_CONFIGS[::2]
    both = run_check("libvirt-guests", HOST, files={first: "ON_SHUTDOWN=shutdown", second: "A=1"}, folders=GUESTS)
    assert both.verdict is WARN
    assert both.evidence[:2] == (f"{first}: ON_SHUTDOWN is shutdown", f"{second}: ON_SHUTDOWN is suspend")
