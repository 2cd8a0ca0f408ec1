"""Two hosts, and a VM at work that moves between them: with an mtty and a disk that is copied.

The guest writes to memory, to the mtty and to its disk, and reads what it wrote eight rounds before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.lab.console import ask_guest, read_console
from tests.lab.machine import Lab
from tests.lab.pair import Pair
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import leftovers, must, use_defaults

T = TypeVar("T")
VM = "vm-1"
ROUND = re.compile(r"guest round (\d+) memory (\S+) serial (\S+) disk (\S+)")
ROUNDS = r"(?s)(guest round \d+ [^\n]*\n.*?){10}"
"""More than the places to which a guest writes: it has read all of them again."""


class Site:
    """Two hosts with an mtty each, and a VM that works on the first one."""

    def __init__(self, pair: Pair) -> None:
        self.source, self.target = pair.source, pair.target
        pair.certify()
        self.clean = self.on_both(_prepare)
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
        findings = self.on_both(lambda host: must(host, "reconcile-host", "--dry-run")["findings"])
        assert findings == ([], [])

    def on_both(self, act: Callable[[Lab], T]) -> tuple[T, T]:
        """Do something on both hosts at the same time; return the results of the source and the target."""
        with ThreadPoolExecutor(2) as threads:
            source, target = threads.map(act, (self.source, self.target))
        return source, target


def _prepare(lab: Lab) -> str:
    """Install vgpuctl on a host; return what is there before any VM."""
    lab.run(f"{INSTALLED}\nmodprobe mtty")
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    return leftovers(lab)
