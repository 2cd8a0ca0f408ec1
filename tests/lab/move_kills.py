"""Interrupts moves between two hosts of the lab: `python3 -m tests.lab moves --count 20`.

In each trial a VM at work moves, and at some instant a program is killed or the cable is pulled. Then `end-migration`
ends the move. The VM runs on one host, its memory, device and disk are whole, and nothing of it is on the other one.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.lab.cache import say
from tests.lab.machine import Lab
from tests.lab.moving import VM, Site
from tests.lab.pair import SOURCE, TARGET, ready
from tests.lab.session import CHECKOUT, Keeper
from tests.lab.vgpuctl_in import call, must

TABLE = CHECKOUT / "docs" / "reports" / "moves-lab.md"
# On the source: memory is sent, or the move has ended. The brackets keep pgrep from finding this script.
IS_SENT = f"virsh domjobinfo {VM} 2>&1 | grep -q 'Data processed:' || ! pgrep -f '[m]igrate-vm' > /dev/null"
SENT_SECONDS = 240
BANDWIDTH_MIB_S = 4
"""So slowly that something can happen meanwhile."""
KILL_LIBVIRT = "kill -9 $(pidof libvirtd)"
ACTS: Mapping[str, tuple[bool, str, str]] = {
    "kill -9 of migrate-vm": (True, "pkill -9 -f '[m]igrate-vm'", ""),
    "kill -9 of the source's libvirtd": (True, KILL_LIBVIRT, ""),
    "kill -9 of the target's libvirtd": (False, KILL_LIBVIRT, ""),
    "kill -9 of the target's QEMU": (False, f"kill -9 $(cat /run/libvirt/qemu/{VM}.pid)", ""),
    "the cable is pulled for a minute": (False, "ip link set eth1 down; sleep 60", "ip link set eth1 up"),
}
"""What happens: on the source (else on the target), the script, and what ends it."""
HEAD = """# Moves between two hosts of the lab that are interrupted

A VM with an mtty and a disk that is copied moves alive between two emulated hosts (a real kernel, libvirt and QEMU),
and at a random instant a program is killed, or the cable between them is pulled. Then `end-migration` runs, on the host
where the move began. In the end the VM runs on one host, what its guest wrote to memory, device and disk is whole,
nothing of it is on the other host, and `reconcile-host` finds nothing on either one; the next trial moves it on from
there.

`migrate-vm` ends with 255 where it was killed itself, and with 0 where all had come before.

Made by `.venv/bin/python -m tests.lab moves --count {count}` on {date}, {machine}. Seed: {seed}. Instants are
counted from the moment at which memory is sent first. A move that nothing interrupted took {longest:.0f} s from there;
all go at {bandwidth} MiB/s.

| what happened | instant, seconds | `migrate-vm` ended with | `end-migration` took | in the end it runs on |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Trial:
    """One interrupted move. `status`: of migrate-vm; `tries`: so often end-migration was called until it was done."""

    act: str
    seconds: float
    status: int
    tries: int
    on_target: bool

    def row(self) -> str:
        """Return its row of the table."""
        where = "the target" if self.on_target else "the source"
        calls = "1 call" if self.tries == 1 else f"{self.tries} calls"
        return f"| {self.act} | {self.seconds:.1f} | {self.status} | {calls} | {where} |"


def interrupt(site: Site, here: Lab, other: Lab, act: str, seconds: float) -> Trial:
    """Move the VM from `here`, interrupt that, and have it ended; check that it runs on one host and is whole."""
    to = f"ssh://{TARGET if other is site.target else SOURCE}"
    on_source, script, after = ACTS[act]
    place = here if on_source else other
    with here.start_command(_move_words(to)) as move:
        here.wait_until(IS_SENT, timeout=SENT_SECONDS)
        place.run(f"sleep {seconds:.2f}; {script}", check=False, timeout=seconds + 120)
        if after:
            place.run(after)
        move.communicate(timeout=600)
    for lab in (here, other):
        lab.wait_until("virsh uri", timeout=120)
    tries = 1
    while (ended := call(here, "end-migration", VM, "--with", to))[0] != 0:
        tries += 1
        assert tries <= 3, ended
    on_target = runs(other)
    assert runs(here) is not on_target, "it runs on both hosts, or on neither"
    for lab in (here, other):
        must(lab, "reconcile-host")  # a killed command leaves its own note
    site.is_whole_on(other if on_target else here, here if on_target else other)
    site.works(other if on_target else here)
    return Trial(act, seconds, move.returncode, tries, on_target)


def measure(site: Site, here: Lab, other: Lab) -> float:
    """Move the VM once; return how many seconds that took from the instant at which memory was sent first."""
    with here.start_command(_move_words(f"ssh://{TARGET if other is site.target else SOURCE}")) as move:
        here.wait_until(IS_SENT, timeout=SENT_SECONDS)
        begin = time.monotonic()
        printed = move.communicate(timeout=600)
    assert move.returncode == 0, printed
    return time.monotonic() - begin


def _move_words(to: str) -> list[str]:
    words = ["vgpuctl", "--json", "--yes", "migrate-vm", VM, "--to", to, "--copy-storage"]
    return [*words, "--bandwidth", str(BANDWIDTH_MIB_S)]


def runs(lab: Lab) -> bool:
    """Return whether the VM runs on a host, as its libvirt says."""
    return VM in lab.run("virsh list --state-running --name").stdout.split()


def interrupt_many(count: int) -> int:
    """Interrupt so many moves, write the table, and return the exit status."""
    deaths: list[str] = []
    keepers = [Keeper("normal", deaths), Keeper("normal", deaths)]
    seed = int.from_bytes(os.urandom(4), "big")
    chance, trials, longest = random.Random(seed), [], 0.0
    try:
        site = Site(ready(keepers[0].running(), keepers[1].running()))
        longest = measure(site, site.source, site.target)
        here, other = site.target, site.source
        for number in range(count):
            act = list(ACTS)[number % len(ACTS)]
            trial = interrupt(site, here, other, act, chance.uniform(0.0, longest))
            trials.append(trial)
            say(trial.row())
            here, other = (other, here) if trial.on_target else (here, other)
    finally:
        for keeper in keepers:
            keeper.stop()
        if trials:  # also after an interrupt
            machine = f"{os.cpu_count()} CPUs ({platform.machine()}), the hosts emulated without KVM"
            head = HEAD.format(
                count=count, date=time.strftime("%Y-%m-%d", time.gmtime()), machine=machine, seed=seed,
                bandwidth=BANDWIDTH_MIB_S, longest=longest,
            )  # fmt: skip
            rows = sorted(trials, key=lambda trial: (trial.act, trial.seconds))
            TABLE.write_text(head + "".join(f"{trial.row()}\n" for trial in rows))
            say(f"{TABLE}: {len(trials)} moves")
    return int(len(trials) < count)
