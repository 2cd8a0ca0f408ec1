# SPDX-License-Identifier: Apache-2.0
"""AMD's gim on the simulated host: what loading it makes of its file, and what its files accept."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import PF, MakeHost, refused
from vgpuctl.sim import SimHost

CONFIG = "etc/gim_config"


def load(host: SimHost, text: str, options: str = "") -> tuple[dict[str, int], str]:
    """Load gim again with this file, and return the VFs and the file afterwards."""
    (host.run_dir.parent / CONFIG).write_text(text)
    if options:
        (host.run_dir.parent / "etc/modprobe.d").mkdir()
        (host.run_dir.parent / "etc/modprobe.d/gim.conf").write_text(options)
    for unload in (True, False):
        assert host.vendor.modprobe("gim", unload=unload, address="", deadline_seconds=1).status == 0
    return dict(host._core.read_state().vfs), host.sysfs.read(f"/{CONFIG}")


@pytest.mark.parametrize(
    ("text", "options", "vfs", "first_line"),
    [
        ("vf_num=4,8\n", "", (4, 8), "vf_num=4,8"),
        ("vf_num=2\n", "", (2, 2), "vf_num=2"),
        ("# two\nvf_num=2\n", "", (1, 1), "vf_num=1"),
        ("bp_mode=1\nvf_num=2\n", "", (1, 1), "vf_num=1"),
        ("log_level=3\nvf_num=2\n", "", (2, 2), "vf_num=2"),
        ("vf_num=32,8\n", "", (1, 8), "vf_num=1,8"),
        ("vf_num=2\n", "options gim vf_num=8\n", (8, 8), "vf_num=8"),
        ("vf_num=2\n", "options gim \\\n vf_num=8\n", (8, 8), "vf_num=8"),
        ("vf_num=2\n", "options gim vf-num=8\n", (8, 8), "vf_num=8"),
        ("vf_num=2\n", 'options gim "vf_num=8"\n', (8, 8), "vf_num=8"),
        ("vf_num=3,8\n", "", (0, 8), "vf_num=3,8"),
    ],
)
def test_what_it_makes_of_its_file(make: MakeHost, text: str, options: str, vfs: tuple[int, int], first_line: str):
    numbers, written = load(make("mi300x"), text, options)
    assert tuple(numbers.values()) == vfs
    assert written.splitlines()[0] == first_line


def test_saved_modes_are_used_where_they_go_with_the_number(make: MakeHost) -> None:
    host = make("mi300x")
    load(host, "vf_num=8\naccelerator_partition_mode=8\nmemory_partition_mode=4\n")
    assert host.sysfs.read(f"{PF}/memory_partition_mode").startswith("memory_partition_mode: NPS4\n")
    load(host, "vf_num=2\naccelerator_partition_mode=8\nmemory_partition_mode=4\n")
    assert host.sysfs.read(f"{PF}/memory_partition_mode").startswith("memory_partition_mode: NPS1\n")
    assert host.sysfs.read(f"{PF}/spatial_partition_mode") == "DPX\n"


def test_it_writes_over_its_file_without_shortening_it(make: MakeHost) -> None:
    saved = "accelerator_partition_mode=2\nmemory_partition_mode=1\n"
    _, written = load(make("mi300x"), f"vf_num=8,8,8,8\n{saved}vf_num=2\n")
    assert written.startswith(f"vf_num=2\n{saved}")
    assert len(written) > len(f"vf_num=2\n{saved}")


def test_a_mode_that_does_not_fit_changes_nothing_and_is_no_error(make: MakeHost) -> None:
    host = make("mi300x")
    before = [host.sysfs.read(f"{PF}/{name}") for name in ("memory_partition_mode", "accelerator_partition_profile")]
    host.sysfs.write(f"{PF}/memory_partition_mode", "NPS2\n")
    host.sysfs.write(f"{PF}/accelerator_partition_profile", "7\n")
    after = [host.sysfs.read(f"{PF}/{name}") for name in ("memory_partition_mode", "accelerator_partition_profile")]
    assert after == before
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{PF}/memory_partition_mode", "four"))
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{PF}/accelerator_partition_profile", "CPX"))


def test_a_host_without_its_gpus_lacks_the_module(make: MakeHost) -> None:
    done = make("t4").vendor.modprobe("gim", unload=False, address="", deadline_seconds=1)
    assert (done.status, "not found in directory" in done.text) == (1, True)
