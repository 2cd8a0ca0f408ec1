"""A VM with a vGPU that supports migration moves to another host and back, by libvirt alone, while its guest works.

These tests are of the lab and of libvirt, not of vgpuctl: what they find out is what vgpuctl can rely on.
"""

from __future__ import annotations

import re

import pytest

from tests.lab.domains import mdev_hostdev, serial_log, start, tiny_domain
from tests.lab.errors import CommandFailed
from tests.lab.machine import Lab
from tests.lab.pair import SOURCE, TARGET, Pair

NAME = "tiny"
VGPUS = {SOURCE: "5c1d2f60-0000-4000-8000-000000000001", TARGET: "5c1d2f60-0000-4000-8000-000000000002"}
TYPE = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1"
ROUND = re.compile(r"guest round (\d+) memory (\S+) serial (\S+)")
# One more than the files that the guest's rounds write to: after so many it has read each of them again.
ROUNDS = 9


def make_vgpu(lab: Lab, uuid: str) -> None:
    """Create an mtty. One that a failed move left behind cannot take part in another: it still waits for its state."""
    lab.run(f"modprobe mtty; [ ! -e /sys/bus/mdev/devices/{uuid} ] || echo 1 > /sys/bus/mdev/devices/{uuid}/remove")
    lab.run(f"echo {uuid} > {TYPE}/create")


class Guest:
    """The guest, and what it said on the hosts that it left: each host has its own log of its console."""

    def __init__(self, pair: Pair) -> None:
        """Start it on the source, with a vGPU on both hosts."""
        self._console = ""
        for lab, name in ((pair.source, SOURCE), (pair.target, TARGET)):
            make_vgpu(lab, VGPUS[name])
        devices = mdev_hostdev(VGPUS[SOURCE])
        start(pair.source, NAME, tiny_domain(NAME, devices=devices, options="vgpulab.rounds"))
        self.works(pair.source)

    def works(self, lab: Lab) -> None:
        """Wait for some more of its rounds on this host. All rounds since its start were good, and none is missing."""
        last = self._rounds(lab)[-1:]
        wanted = f"guest round {(last or [0])[0] + ROUNDS} "
        lab.run(["timeout", "100", "wait-for-line", serial_log(NAME), wanted], timeout=130)
        numbers = self._rounds(lab)
        assert numbers == list(range(1, len(numbers) + 1)), "a round is missing"

    def left(self, lab: Lab) -> None:
        """Keep what it said on this host: the next domain of this name there overwrites its log."""
        self._console += lab.read(serial_log(NAME))

    def _rounds(self, lab: Lab) -> list[int]:
        rounds = ROUND.findall(self._console + lab.run(["cat", serial_log(NAME)], check=False).stdout)
        assert {(memory, serial) for _, memory, serial in rounds} <= {("whole", "whole")}, rounds
        return [int(number) for number, _, _ in rounds]


def move(lab: Lab, to: str, *options: str) -> None:
    """Migrate the guest with `virsh`, to the vGPU of the other host; both definitions of it name that vGPU there."""
    here = SOURCE if to == TARGET else TARGET
    script = f"""set -eu
    virsh dumpxml --migratable {NAME} | sed s/{VGPUS[here]}/{VGPUS[to]}/ > live.xml
    virsh dumpxml --migratable --inactive {NAME} | sed s/{VGPUS[here]}/{VGPUS[to]}/ > later.xml
    virsh migrate --live --undefinesource --persistent --xml live.xml --persistent-xml later.xml \\
        {" ".join(options)} {NAME} qemu+tcp://{to}/system
    """
    lab.run(script, timeout=150)


def domains(lab: Lab) -> list[str]:
    return lab.run("virsh list --all --name").stdout.split()


@pytest.mark.deadline(400)
def test_a_working_guest_moves_to_the_other_host_and_back(pair: Pair) -> None:
    guest = Guest(pair)
    move(pair.source, TARGET, "--p2p")
    guest.left(pair.source)
    assert (domains(pair.source), domains(pair.target)) == ([], [NAME])
    guest.works(pair.target)
    # This time the client speaks to both hosts, and the vGPU there was in use before.
    move(pair.target, SOURCE)
    guest.left(pair.target)
    assert (domains(pair.source), domains(pair.target)) == ([NAME], [])
    guest.works(pair.source)
    assert VGPUS[SOURCE] in pair.source.run(f"virsh dumpxml --inactive {NAME}").stdout


@pytest.mark.deadline(400)
def test_a_cancelled_move_leaves_the_guest_at_work_and_a_vgpu_that_must_be_made_again(pair: Pair) -> None:
    pair.certify()
    guest = Guest(pair)
    pair.source.run(f"virsh migrate-setspeed {NAME} 1")
    processed = f"virsh domjobinfo {NAME} | grep -q 'Memory processed:'"
    cancel = f"until {processed}; do sleep 0.2; done; virsh domjobabort {NAME}"
    with pair.source.start_command(["timeout", "100", "bash", "-c", cancel]) as child:
        with pytest.raises(CommandFailed, match="canceled by client"):
            move(pair.source, TARGET, "--p2p")
        child.communicate()
    assert (domains(pair.source), domains(pair.target)) == ([NAME], [])
    guest.works(pair.source)
    pair.source.run(f"virsh migrate-setspeed {NAME} 0")
    with pytest.raises(CommandFailed, match="Bad file descriptor"):
        move(pair.source, TARGET, "--p2p")
    make_vgpu(pair.target, VGPUS[TARGET])
    move(pair.source, TARGET, "--p2p", "--tls")
    guest.left(pair.source)
    guest.works(pair.target)
