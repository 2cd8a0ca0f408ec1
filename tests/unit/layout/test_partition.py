# SPDX-License-Identifier: Apache-2.0
"""The steps of MIG and mixed sizes: done, read back, undone; and what an answer of NVML's or nvidia-smi's means."""

from __future__ import annotations

import errno

import pytest

from tests.faults import outcome
from tests.partitions import FIRST, SECOND, everything, small, stands
from tests.worlds import create, open_host, wish
from vgpuctl.errors import Busy, DeviceFailed, Failed, HostCannot, InUse, NvmlFailed, VerifyFailed
from vgpuctl.layout.nvidia import ManageVfs
from vgpuctl.layout.partition import DestroyInstance, MakeInstance, SetMig, SetMixedSize
from vgpuctl.model.partition import Span
from vgpuctl.model.records import CommandResult
from vgpuctl.value import replace

AT = Span(6, 1)


class Nvml:
    """An NVML of which one call answers with an error, or does nothing."""

    def __init__(self, real, call, code=None):
        self.real, self.call, self.code = real, call, code

    def __getattr__(self, name):
        if name != self.call:
            return getattr(self.real, name)

        def refused(*args, **more):
            if self.code is not None:
                raise NvmlFailed("NVML said no", nvml_code=self.code, call=name)

        return refused


class Smi:
    """An nvidia-smi that ends in one way."""

    def __init__(self, real, result):
        self.real, self.result = real, result

    def sriov_manage(self, *args, **more):
        return self.real.sriov_manage(*args, **more)

    def reset_gpu(self, address, *, deadline_seconds):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def profile(host, name, gpu=FIRST):
    return next(p for p in host.sim.nvml.gpu(gpu).mig.profiles if p.name == name)


@pytest.fixture
def host(tmp_path):
    return open_host(tmp_path, "h100-mig")


def steps(host):
    one = profile(host, "1g.10gb")
    return {
        "set_mig": SetMig(SECOND, enable=True, before=False),
        "make_instance": MakeInstance(FIRST, one, AT),
        "destroy_instance": DestroyInstance(FIRST, one, Span(4, 1)),
        "set_mixed_size": SetMixedSize(SECOND, enable=True),
    }


@pytest.mark.parametrize("call", ["set_mig", "make_instance", "destroy_instance", "set_mixed_size"])
def test_each_is_done_read_back_and_undone_and_an_undo_that_has_nothing_to_do_does_nothing(host, call):
    step = steps(host)[call]
    if call == "set_mig":
        ManageVfs(SECOND, enable=False, total=32).perform(host.world)
    before = everything(host), everything(host, SECOND)
    step.undo(host.world)
    assert (everything(host), everything(host, SECOND)) == before
    step.perform(host.world)
    step.verify(host.world)
    assert (everything(host), everything(host, SECOND)) != before
    step.undo(host.world)
    assert (everything(host), everything(host, SECOND)) == before


@pytest.mark.parametrize("call", ["set_mig", "make_instance", "destroy_instance", "set_mixed_size"])
@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (19, InUse, "it is in use"),
        (3, HostCannot, "cannot have it now"),
        (4, Failed, "only root may do that"),
        (23, HostCannot, "no room left"),
        (999, NvmlFailed, "NVML said no"),
    ],
)
def test_what_nvml_answers_is_told_with_its_meaning(host, call, code, kind, told):
    world = replace(host.world, nvml=Nvml(host.world.nvml, call, code))
    with pytest.raises(kind, match=told) as raised:
        steps(host)[call].perform(world)
    assert raised.value.facts["nvml_code"] == code


@pytest.mark.parametrize("call", ["set_mig", "make_instance", "destroy_instance", "set_mixed_size"])
def test_what_is_acknowledged_and_not_done_is_noticed(host, call):
    step = steps(host)[call]
    world = replace(host.world, nvml=Nvml(host.world.nvml, call))
    step.perform(world)
    with pytest.raises(VerifyFailed):
        step.verify(world)


def test_an_instance_with_a_vgpu_stays(host):
    create(host.world, wish("H100-3-40C", name="vm", gpu=FIRST))
    step = DestroyInstance(FIRST, profile(host, "3g.40gb"), Span(0, 4))
    with pytest.raises(InUse, match="in use") as raised:
        step.perform(host.world)
    assert raised.value.hint == "stop what uses it; vgpuctl show-gpu 0000:3b:00.0 shows its vGPUs"
    assert "9@0:4" in stands(host)[1]


PENDING = '{on: nvml-set-mig, match: "*", kind: pending}'


def off(directory):
    """Return a host whose A100 has no VFs, and changes MIG at its next reset."""
    return small(directory, "A100", more="vfs: {enabled: 0}", faults=PENDING)


@pytest.mark.parametrize(
    ("result", "kind", "told"),
    [
        (CommandResult(0, ""), Busy, "with its next reset: its driver does not change it at once"),
        (CommandResult(255, "\nno such luck\n"), DeviceFailed, "could not be reset: no such luck"),
        (CommandResult(255, ""), DeviceFailed, "could not be reset: status 255"),
        (FileNotFoundError(errno.ENOENT, "nvidia-smi"), Busy, "with its next reset"),
        (PermissionError(errno.EACCES, "denied"), DeviceFailed, "nvidia-smi could not be started"),
    ],
)
def test_what_is_pending_after_a_reset_waits_for_a_reboot(tmp_path, result, kind, told):
    host = off(tmp_path)
    world = replace(host.world, vendor=Smi(host.world.vendor, result))
    step = SetMig(FIRST, enable=True, before=False, reset=True)
    with pytest.raises(kind, match=told) as raised:
        step.perform(world)
    assert "reboot the host" in str(raised.value.hint) or kind is DeviceFailed
    with pytest.raises(Failed, match="goes on when the host boots next"):
        step.undo(world)
    assert stands(host)[0] == (False, True)


def test_what_is_pending_is_called_off_again(tmp_path):
    host = off(tmp_path)
    assert isinstance(outcome(lambda: SetMig(FIRST, enable=True, before=False).perform(host.world)), Busy)
    back = SetMig(FIRST, enable=False, before=False)
    back.perform(host.world)
    back.verify(host.world)
    assert stands(host)[0] == (False, False)
    SetMig(FIRST, enable=True, before=False, reset=True).perform(host.world)
    assert stands(host)[0] == (True, True)
