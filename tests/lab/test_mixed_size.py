"""vGPUs of several sizes on one GPU through vgpuctl, on the lab's module: where they are, and after a boot."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.partitioned import cycle_vfs, partitioned_host, told, vf_says, wait_for_vm
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must

SIZES = {"A100-20C": 20, "A100-4C": 4, "A100-8C": 8}
"""In GiB, which are the units of a placement."""


@pytest.mark.quick
@pytest.mark.deadline(900)
def test_vms_of_two_sizes_are_side_by_side_and_at_their_places_again_after_a_boot(lab: Lab) -> None:
    partitioned_host(lab, "vendor-vf")
    before = leftovers(lab)
    must(lab, "create-vm", "vm-0", "--profile", "A100-4C", "--no-start")
    must(lab, "set-mixed-size", IGB, "on", status=3)
    must(lab, "delete-vm", "vm-0")
    must(lab, "set-mixed-size", IGB, "on")
    assert told(lab, "mixed") == ["1 1"]
    must(lab, "set-scheduler", IGB, "--policy", "fixed_share", status=6)
    must(lab, "set-scheduler", IGB, "--policy", "equal_share")
    carriers = {}
    for number, profile in enumerate(SIZES):
        words = () if profile == "A100-20C" else ("--no-start",)
        carriers[profile] = must(lab, "create-vm", f"vm-{number}", "--profile", profile, *words)["vgpus"][0]["carrier"]
    assert A100 in guest_devices(lab, "vm-0")
    places = {profile: vf_says(lab, carrier, "placement_id") for profile, carrier in carriers.items()}
    spans = sorted((start, start + SIZES[profile]) for profile, start in places.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans
    shown = {f"vm-{n}": must(lab, "show-vm", f"vm-{n}")["vgpus"][0]["placement_id"] for n in range(3)}
    assert list(shown.values()) == list(places.values())
    must(lab, "set-mixed-size", IGB, "off", status=3)
    lab.run("virsh autostart vm-0")
    lab.reboot()
    wait_for_vm(lab, "vm-0")
    assert (told(lab, "mixed"), told(lab, "scheduler")) == (["1 1"], ["2 2 33 1041666"])
    assert {profile: vf_says(lab, carrier, "placement_id") for profile, carrier in carriers.items()} == places
    assert must(lab, "reconcile")["findings"] == []
    must(lab, "stop-vm", "vm-0", "--force")
    for number in range(3):
        must(lab, "delete-vm", f"vm-{number}")
    assert leftovers(lab) == before
    cycle_vfs(lab)
    assert told(lab, "mixed") == ["1 0"]
    must(lab, "assert", status=7)
    must(lab, "apply")
    assert told(lab, "mixed") == ["1 1"]
    must(lab, "set-mixed-size", IGB, "off")
    assert told(lab, "mixed") == ["1 0"]
