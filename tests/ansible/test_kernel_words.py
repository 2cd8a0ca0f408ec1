# SPDX-License-Identifier: Apache-2.0
"""Role gpu_host sets kernel parameters and removes them again, on both distribution families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ansible.bare import Bare
from tests.ansible.plays import Ran
from tests.ansible.stand_ins import HARDWARE, PROGRAMS, RED_HAT, RED_HATS_PROGRAMS, SHUTDOWN

pytestmark = pytest.mark.long
NOTE = "/etc/default/vgpuctl-kernel-words"
FROM_GRUBBY = SHUTDOWN.replace("sed -n 's/.*vmlinuz-1 //p' /boot/grub/grub.cfg", "cat /fake/args")
FAMILIES = {
    "debian": ({**HARDWARE, "/boot/grub/grub.cfg": "\tlinux\t/boot/vmlinuz-1 root=/dev/vda quiet\n"}, PROGRAMS),
    "red-hat": ({**HARDWARE, **RED_HAT}, {**RED_HATS_PROGRAMS, "/usr/sbin/shutdown": FROM_GRUBBY}),
}
PARTS = ("look", "boot", "reboot")


def set_parameters(bare: Bare, *parameters: str, check: bool = False) -> Ran:
    """Run the part of role gpu_host that sets the kernel command line."""
    role = {"name": "vgpuctl.vgpuctl.gpu_host"}
    tasks = [{"ansible.builtin.setup": {"gather_subset": ["!all", "min"]}}]
    tasks += [{"ansible.builtin.include_role": {**role, "tasks_from": part}} for part in PARTS]
    path = bare.place / "words.yml"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    variables = {"gpu_host_virsh": {"stat": {"exists": False}}, "gpu_driver_pending": []}
    return bare.playbook(path, *(["--check"] if check else []), **variables, gpu_host_kernel_arguments=parameters)


def reboots(bare: Bare) -> int:
    return bare.text("/fake/done").split("\n").count("reboot")


@pytest.mark.parametrize("family", FAMILIES)
def test_only_vgpuctls_unneeded_kernel_parameters_are_removed(tmp_path: Path, family: str) -> None:
    files, programs = FAMILIES[family]
    bare = Bare(tmp_path, files, programs)
    try:
        first = set_parameters(bare, "pci=realloc", "quiet")
        assert (first.failed, reboots(bare)) == ([], 1), first.output
        assert "pci=realloc" in bare.text("/fake/cmdline").split()
        assert "quiet" not in bare.text(NOTE).split(), "it was there before"

        before = bare.layer()
        checked = set_parameters(bare, check=True)
        assert "A reboot is pending: the kernel runs with pci=realloc, which was taken out" in checked.output
        assert any(task.endswith("Set the parameters of the kernels") for _, task in checked.changed)
        assert bare.layer() == before

        removed = set_parameters(bare)
        assert (removed.failed, reboots(bare)) == ([], 2), removed.output
        parameters = bare.text("/fake/cmdline").split()
        assert ("pci=realloc" in parameters, "quiet" in parameters, "iommu=pt" in parameters) == (False, True, True)
        assert bare.text(NOTE).splitlines()[1].split() == ["intel_iommu=on", "iommu=pt"]
        again = set_parameters(bare)
        assert (again.failed, again.changed, reboots(bare)) == ([], [], 2), again.output
    finally:
        bare.close()
