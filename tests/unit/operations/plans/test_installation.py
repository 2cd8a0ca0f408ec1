# SPDX-License-Identifier: Apache-2.0
"""The files that install-host writes: which are managed, where the hook goes, and what the unit contains."""

from __future__ import annotations

import subprocess

import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.operations.plans.installation import (
    HOOK_PATH,
    MAIN_HOOK_PATH,
    hook_file,
    hook_text,
    unit_file,
    with_checksum,
)


def test_an_older_libvirt_has_one_hook_and_it_is_never_overwritten():
    assert hook_file("/usr/bin/python3", 6_000_000, None).path == MAIN_HOOK_PATH
    assert hook_file("/usr/bin/python3", 6_000_000, with_checksum("older\n")).path == MAIN_HOOK_PATH
    with pytest.raises(HostCannot, match=r"libvirt 6\.0\.0 runs only one hook"):
        hook_file("/usr/bin/python3", 6_000_000, "#!/bin/sh\n")
    for version in (None, 6_005_000):
        assert hook_file("/usr/bin/python3", version, "#!/bin/sh\n").path == HOOK_PATH


def test_the_unit_waits_for_drivers_by_order_alone_and_comes_before_libvirt():
    text = unit_file('/opt/a b/100%/python"3').text
    before = next(line for line in text.splitlines() if line.startswith("Before="))
    assert {"libvirtd.service", "virtqemud.service"} <= set(before.removeprefix("Before=").split())
    assert "nvidia-vgpu-mgr.service" in next(line for line in text.splitlines() if line.startswith("After="))
    assert "Requires" not in text
    assert ".socket" not in text, "sockets come before basic.target, NVIDIA's daemons after it: a cycle"
    assert 'ExecStart="/opt/a b/100%%/python\\"3" -I -m vgpuctl restore-host' in text


def test_the_hook_is_valid_shell_whatever_the_interpreter_is_called():
    text = hook_text("/opt/a 'b'/python3")
    assert subprocess.run(["/bin/sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_hook_starts_python_through_a_program_that_libvirts_apparmor_profile_lets_go():
    (line,) = [line for line in hook_text("/opt/vgpuctl/bin/python3").splitlines() if "vgpuctl.hook" in line]
    assert "exec /usr/bin/env /opt/vgpuctl/bin/python3 -I -m vgpuctl.hook" in line
