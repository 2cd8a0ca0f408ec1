# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id; the hook, the unit that restores, and libvirt-guests."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, MACHINE, a100, assigned, snapshot, t4, vm
from vgpuctl.doctor.check import FileContent, Verdict
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
from vgpuctl.model.gpu import Backend, VgpuType
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.value import replace


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (FilePermissions(0o700, 0, 0), Verdict.OK),
        (FilePermissions(0o755, 0, 0), Verdict.OK),
        (FilePermissions(0o770, 0, 100), Verdict.FAIL),
        (FilePermissions(0o777, 0, 0), Verdict.FAIL),
        (FilePermissions(0o700, 1000, 0), Verdict.FAIL),
    ],
)
def test_nobody_else_writes_claims(seen, verdict):
    result = run_check("run-directory", permissions={RUN_DIRECTORY: seen})
    assert result.verdict is verdict
    assert f"mode {seen.mode:04o}, owner {seen.owner}" in finding_text(result)


def test_a_missing_run_directory_is_ok():
    assert run_check("run-directory").verdict is Verdict.OK
    result = run_check(
        "run-directory", permissions={RUN_DIRECTORY: FilePermissions(0o700, 0, 0)}, claims_problem="Permission denied"
    )
    assert result.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("text", "mode", "verdict"),
    [
        (FileContent(), 0o644, Verdict.OK),
        ("version: 1\n", 0o644, Verdict.OK),
        ("version: 1\n", 0o666, Verdict.WARN),
        ("# version: 1\n", 0o644, Verdict.FAIL),
        ("version: 1\ngpu: {}\n", 0o644, Verdict.FAIL),
        (FileContent(problem=f"{HOST_FILE}: Permission denied"), 0o600, Verdict.UNKNOWN),
        (FileContent(problem=f"{HOST_FILE}: Is a directory"), 0o755, Verdict.FAIL),
    ],
)
def test_the_host_file(text, mode, verdict):
    result = run_check("host-file", files={HOST_FILE: text}, permissions={HOST_FILE: FilePermissions(mode, 0, 0)})
    assert result.verdict is verdict


def test_an_invalid_host_file_has_its_line():
    result = run_check("host-file", files={HOST_FILE: "version: 1\ngpu: {}\n"})
    assert f"{HOST_FILE}:2" in finding_text(result)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"{MACHINE}\n", Verdict.OK),
        ("uninitialized\n", Verdict.FAIL),
        ("", Verdict.FAIL),
        (FileContent(), Verdict.FAIL),
        (FileContent(problem="Permission denied"), Verdict.UNKNOWN),
    ],
)
def test_the_machine_id(text, verdict):
    assert run_check("machine-id", files={MACHINE_ID: text}).verdict is verdict


def test_a_profile_that_no_gpu_here_can_ever_offer_is_named_with_its_line():
    text = "version: 1\ngpus:\n  all:\n    profiles: [A100-4C, A100-44C]\n  T4: {profiles: [T4-1Q]}\n"
    card = replace(a100(), types=(VgpuType("nvidia-468", "GRID A100-4C", "A100-4C", 4096, max_per_gpu=10),))
    result = run_check("host-file", snapshot(card), files={HOST_FILE: text})
    assert result.verdict is Verdict.WARN
    assert result.evidence == (
        f"{HOST_FILE}:4: gpus.all: {card.address} can never offer the profile A100-44C (did you mean A100-4C?)",
    )
    unknown_types = replace(card, types=(), model="10de:20f1", vendor_id="10de", device_id="20f1")
    assert run_check("host-file", snapshot(unknown_types), files={HOST_FILE: text}).verdict is Verdict.OK


GPU = a100()
RUNS = FilePermissions(0o755, 0, 0)
HOST = snapshot(GPU, vms=(vm(1, assigned(GPU, A4C)),))


def test_a_hook_in_qemu_d_or_libvirts_file():
    own = run_check("start-hook", HOST, folders={HOOK_DIRECTORY: ("vgpuctl",)}, permissions={VGPUCTL_HOOK: RUNS})
    line = run_check(
        "start-hook", HOST, files={LIBVIRT_HOOK: "#!/bin/sh\nexec vgpuctl hook\n"}, permissions={LIBVIRT_HOOK: RUNS}
    )
    assert (own.verdict, line.verdict) == (Verdict.OK, Verdict.OK)


def test_no_hook_is_a_warning():
    result = run_check("start-hook", HOST, files={LIBVIRT_HOOK: "#!/bin/sh\n"}, folders={HOOK_DIRECTORY: ("other",)})
    assert result.verdict is Verdict.WARN
    assert "vgpuctl install-host" in finding_text(result)


def test_a_hook_that_libvirt_may_not_run_fails():
    held = FilePermissions(0o644, 0, 0)
    result = run_check("start-hook", HOST, folders={HOOK_DIRECTORY: ("vgpuctl",)}, permissions={VGPUCTL_HOOK: held})
    assert (result.verdict, result.fix) == (Verdict.FAIL, f"chmod 755 {VGPUCTL_HOOK}")


def test_hooks_that_cannot_be_read_are_unknown():
    closed = FileContent(problem=f"{LIBVIRT_HOOK}: Permission denied")
    assert run_check("start-hook", HOST, files={LIBVIRT_HOOK: closed}).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("folder", ["/etc/systemd/system", "/usr/lib/systemd/system"])
def test_the_unit_may_be_in_any_of_systemds_places(folder):
    assert (
        run_check("restore-unit", HOST, folders={folder: (RESTORE_UNIT,), WANTS_DIRECTORY: (RESTORE_UNIT,)}).verdict
        is Verdict.OK
    )


def test_a_unit_that_is_not_enabled_is_a_warning():
    result = run_check(
        "restore-unit", HOST, folders={"/etc/systemd/system": (RESTORE_UNIT,), WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,)}
    )
    assert (result.verdict, result.fix) == (Verdict.WARN, f"systemctl enable {RESTORE_UNIT}")


def test_no_unit_is_a_warning():
    result = run_check("restore-unit", HOST, folders={"/etc/systemd/system": ()})
    assert (result.verdict, result.fix) == (Verdict.WARN, "vgpuctl install-host")


def test_passthrough_gpus_need_neither():
    whole = snapshot(t4(backend=Backend.PASSTHROUGH))
    for name in ("start-hook", "restore-unit"):
        assert run_check(name, whole).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ON_SHUTDOWN=shutdown\n", Verdict.OK),
        ("ON_SHUTDOWN=suspend\nON_SHUTDOWN='shutdown'\n", Verdict.OK),
        ('ON_SHUTDOWN="shutdown"   # suspend breaks VMs with a GPU\n', Verdict.OK),
        ("  export ON_SHUTDOWN=shut'down'; PARALLEL_SHUTDOWN=4\n", Verdict.OK),
        ("ON_SHUTDOWN=suspend\n", Verdict.WARN),
        ("#ON_SHUTDOWN=shutdown\n", Verdict.WARN),
        ("", Verdict.WARN),
        ("ON_SHUTDOWN=\n", Verdict.WARN),
        ("ON_SHUTDOWN = shutdown\n", Verdict.WARN),
        ("ON_SHUTDOWN=SHUTDOWN\n", Verdict.WARN),
        ("ON_SHUTDOWN=shutdown\nON_SHUTDOWN=suspend # again\n", Verdict.WARN),
        ("ON_SHUTDOWN=shutdown#now\n", Verdict.WARN),
        ("ON_SHUTDOWN=$ACTION\n", Verdict.UNKNOWN),
    ],
)
@pytest.mark.parametrize("path", LIBVIRT_GUESTS_CONFIGS)
def test_what_libvirt_guests_does_at_shutdown_is_what_its_shell_reads(path, text, verdict):
    result = run_check("libvirt-guests", HOST, files={path: text}, folders={WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,)})
    assert result.verdict is verdict
    assert path in finding_text(result)


@pytest.mark.parametrize(("folder", "number"), [("/etc/sysconfig", 0), ("/etc/conf.d", 1), ("/etc/default", 2)])
def test_without_a_file_libvirt_guests_suspends(folder, number):
    folders = {WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,), folder: ()}
    result = run_check("libvirt-guests", HOST, folders=folders)
    assert result.verdict is Verdict.WARN
    assert "ON_SHUTDOWN is suspend" in result.evidence[0]
    assert result.fix == f"echo ON_SHUTDOWN=shutdown >> {LIBVIRT_GUESTS_CONFIGS[number]}"


def test_two_files_must_say_the_same():
    first, second = LIBVIRT_GUESTS_CONFIGS[::2]
    folders = {WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,)}
    both = run_check("libvirt-guests", HOST, files={first: "ON_SHUTDOWN=shutdown", second: "A=1"}, folders=folders)
    assert both.verdict is Verdict.WARN
    assert both.evidence[:2] == (f"{first}: ON_SHUTDOWN is shutdown", f"{second}: ON_SHUTDOWN is suspend")


def test_libvirt_guests_without_effect_does_not_matter():
    assert (
        run_check("libvirt-guests", HOST, files={LIBVIRT_GUESTS_CONFIGS[0]: "ON_SHUTDOWN=suspend\n"}).verdict
        is Verdict.OK
    )
    idle = run_check("libvirt-guests", snapshot(GPU, vms=(vm(1),)), folders={WANTS_DIRECTORY: (LIBVIRT_GUESTS_UNIT,)})
    assert idle.verdict is Verdict.NOT_APPLICABLE
