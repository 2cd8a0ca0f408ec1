# SPDX-License-Identifier: Apache-2.0
"""A command that is killed while VMs are off for it leaves word of them, and nobody who runs is told of."""

from __future__ import annotations

import os
import signal
import traceback

import pytest

from tests.layouts import FLEX, do, drained, numvfs, starts
from tests.worlds import mend, picture, stop
from vgpuctl.errors import InUse
from vgpuctl.model.vm import DrainedVm, ProcessId
from vgpuctl.value import replace


class Deadly:
    """A seam in which the process dies at the calls that `at` says yes to."""

    def __init__(self, real, at):
        self.real, self.at = real, at

    def __getattr__(self, name):
        def call(*args, **more):
            if self.at(name, args):
                os.kill(os.getpid(), signal.SIGKILL)
            return getattr(self.real, name)(*args, **more)

        return call


def killed(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            traceback.print_exc()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("seam", "at", "off"),
    [("sysfs", numvfs, {"one", "two"}), ("hypervisor", starts(1), {"one", "two"}), ("hypervisor", starts(2), {"two"})],
    ids=["while-they-are-off", "before-the-first-starts", "before-the-second-starts"],
)
def test_vms_that_a_killed_set_mode_left_off_are_started_by_reconcile(tmp_path, seam, at, off):
    host = drained(tmp_path).again()
    running = picture(host).running
    deadly = replace(host.world, **{seam: Deadly(getattr(host.world, seam), at)})
    assert killed(lambda: do(deadly, FLEX, "sriov", 6, drain=True))
    later = host.again()
    assert len(picture(later).running) == len(running) - len(off)
    told = [f["action"] for f in mend(later.world, dry_run=True).data["findings"] if f["kind"] == "drained"]
    if seam == "sysfs":
        assert all("set-mode" in action and "starts" in action for action in told), "it has no VFs to start VMs with"
        with pytest.raises(InUse) as raised:
            do(later.world, FLEX, "sriov", 6, drain=True)
        assert str(raised.value.hint).startswith("vgpuctl reconcile gives it free")
        mend(later.world)
        do(later.world, FLEX, "sriov", 6)
    else:
        assert set(told) == {f"start VM {name}" for name in off}
        mend(later.world)
    assert picture(later).running == running
    assert not mend(later.world, dry_run=True).data["findings"]


def test_a_vm_that_was_drained_and_started_is_not_started_again_once_it_is_stopped(tmp_path):
    host = drained(tmp_path)
    do(host.world, FLEX, "sriov", 6, drain=True)
    stop(host.world, "one")
    later = host.again()
    assert later.world.claims.drained() == ()
    assert not mend(later.world, dry_run=True).data["findings"]


@pytest.mark.parametrize("off", [True, False])
def test_one_that_somebody_stops_stays_off(tmp_path, off):
    host = drained(tmp_path)
    uuid = host.world.hypervisor.find_domain("two").uuid
    host.world.claims.note_drained(DrainedVm(uuid, FLEX, ProcessId(999999, 1)))
    if off:
        host.world.hypervisor.destroy(uuid)
        assert mend(host.world, dry_run=True).changed
    stop(host.world, "two")
    assert not mend(host.world).changed
    assert uuid not in picture(host).running
