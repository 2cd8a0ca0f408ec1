"""`migrate-vm` between two hosts: VMs with an mtty and a copied disk go to the other host and back while they work.

The guests write to memory, to the mtty and to their disk, and read what they wrote eight rounds before.
"""

from __future__ import annotations

import re

import pytest

from tests.lab.console import ask_guest, read_console
from tests.lab.machine import Lab
from tests.lab.pair import SOURCE, TARGET, Pair
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import leftovers, must, use_defaults

VM = "vm-1"
ROUND = re.compile(r"guest round (\d+) memory (\S+) serial (\S+) disk (\S+)")
ROUNDS = r"(?s)(guest round \d+ [^\n]*\n.*?){10}"
"""More than the places to which a guest writes: it has read all of them again."""


class Site:
    """Two hosts with an mtty each, and a VM that works on the first one."""

    def __init__(self, pair: Pair) -> None:
        self.source, self.target = pair.source, pair.target
        pair.certify()
        for lab in (self.source, self.target):
            lab.run(f"{INSTALLED}\nmodprobe mtty")
            use_defaults(lab)
            must(lab, "install-host", "--restart-libvirt")
        self.clean = leftovers(self.source), leftovers(self.target)
        must(self.source, "create-vm", VM, "--profile", "mtty-2")
        ask_guest(self.source, VM, "touch /rounds-wanted")
        self._last = 0
        self.works(self.source)

    def works(self, lab: Lab) -> None:
        """Read ten of the guest's rounds: they follow each other, they are later ones, and all is whole in them."""
        rounds = ROUND.findall(read_console(lab, VM, ROUNDS, timeout=200))
        numbers = [int(number) for number, *_ in rounds]
        assert {tuple(parts) for _, *parts in rounds} == {("whole", "whole", "whole")}, rounds
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] > self._last, "it has booted again"
        self._last = numbers[-1]

    def is_whole_on(self, lab: Lab, other: Lab) -> None:
        """Check that the VM is one of this host, that the other one has nothing of it, and that nobody has to act."""
        shown = must(lab, "show-vm", VM)
        assert (shown["state"], shown["record"]) == ("running", "ready")
        assert leftovers(other) == self.clean[other is self.target]
        for host in (lab, other):
            assert must(host, "reconcile-host", "--dry-run")["findings"] == []


@pytest.mark.quick
@pytest.mark.deadline(1500)
def test_a_vm_at_work_moves_with_its_disk_there_and_back(pair: Pair) -> None:
    site = Site(pair)
    planned = must(site.source, "migrate-vm", VM, "--to", f"ssh://{TARGET}", "--copy-storage", "--dry-run")
    assert ([vgpu["profile"] for vgpu in planned["vgpus"]], planned["copied_disks"]) == (["mtty-2"], ["vda"])
    moved = must(site.source, "migrate-vm", VM, "--to", f"ssh://{TARGET}", "--copy-storage")
    assert (moved["is_live"], moved["copied_disks"]) == (True, ["vda"])
    site.is_whole_on(site.target, site.source)
    site.works(site.target)
    must(site.target, "migrate-vm", VM, "--to", f"ssh://{SOURCE}", "--copy-storage")
    site.is_whole_on(site.source, site.target)
    site.works(site.source)
