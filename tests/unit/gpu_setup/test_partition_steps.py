# SPDX-License-Identifier: Apache-2.0
"""The steps of MIG and mixed sizes: done, verified, undone; and the errors of NVML and nvidia-smi."""

from __future__ import annotations

import errno

import pytest

from tests.faults import outcome
from tests.hosts import create, open_sim_host, request
from tests.partitions import FIRST, SECOND, everything, partition_state, small
from vgpuctl.errors import Busy, DeviceFailed, Failed, HostCannot, InUse, NvmlFailed, VerifyFailed
from vgpuctl.gpu_setup.partition_steps import CreateGpuInstance, DestroyGpuInstance, SetMig, SetMixedSize
from vgpuctl.gpu_setup.sriov import ManageVfs
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.port_values import CommandResult
from vgpuctl.value import replace

AT = PlacementSpan(6, 1)


class Nvml:
    """An NVML with one call that fails or does nothing."""

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
    return open_sim_host(tmp_path, "h100-mig")


def steps(host):
    one = profile(host, "1g.10gb")
    return {
        "set_mig": SetMig(SECOND, enable=True, was_enabled=False),
        "create_gpu_instance": CreateGpuInstance(FIRST, one, AT),
        "destroy_gpu_instance": DestroyGpuInstance(FIRST, one, PlacementSpan(4, 1)),
        "set_mixed_size": SetMixedSize(SECOND, enable=True),
    }


@pytest.mark.parametrize("call", ["set_mig", "create_gpu_instance", "destroy_gpu_instance", "set_mixed_size"])
def test_each_is_done_verified_undone_and_an_empty_undo_does_nothing(host, call):
    step = steps(host)[call]
    if call == "set_mig":
        ManageVfs(SECOND, enable=False, vf_total=32).perform(host.ports)
    before = everything(host), everything(host, SECOND)
    step.undo(host.ports)
    assert (everything(host), everything(host, SECOND)) == before
    step.perform(host.ports)
    step.verify(host.ports)
    assert (everything(host), everything(host, SECOND)) != before
    step.undo(host.ports)
    assert (everything(host), everything(host, SECOND)) == before


@pytest.mark.parametrize("call", ["set_mig", "create_gpu_instance", "destroy_gpu_instance", "set_mixed_size"])
@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (19, InUse, "it is in use"),
        (3, HostCannot, "not possible on this GPU in its current state"),
        (4, Failed, "root is required"),
        (23, HostCannot, "there is no room"),
        (999, NvmlFailed, "NVML said no"),
    ],
)
def test_an_nvml_error_is_explained(host, call, code, kind, message):
    ports = replace(host.ports, nvml=Nvml(host.ports.nvml, call, code))
    with pytest.raises(kind, match=message) as raised:
        steps(host)[call].perform(ports)
    assert raised.value.facts["nvml_code"] == code


@pytest.mark.parametrize("call", ["set_mig", "create_gpu_instance", "destroy_gpu_instance", "set_mixed_size"])
def test_a_change_without_effect_is_noticed(host, call):
    step = steps(host)[call]
    ports = replace(host.ports, nvml=Nvml(host.ports.nvml, call))
    step.perform(ports)
    with pytest.raises(VerifyFailed):
        step.verify(ports)


def test_an_instance_with_a_vgpu_stays(host):
    create(host.ports, request("H100-3-40C", name="vm", gpu=FIRST))
    step = DestroyGpuInstance(FIRST, profile(host, "3g.40gb"), PlacementSpan(0, 4))
    with pytest.raises(InUse, match="in use") as raised:
        step.perform(host.ports)
    assert raised.value.hint == "stop what uses it; vgpuctl show-gpu 0000:3b:00.0 shows its vGPUs"
    assert "9@0:4" in partition_state(host)[1]


PENDING = '{on: nvml-set-mig, match: "*", kind: pending}'


def off(directory):
    """Return a host whose A100 has no VFs, and changes MIG at its next reset."""
    return small(directory, "A100", more="vfs: {enabled: 0}", faults=PENDING)


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (CommandResult(0, ""), Busy, "at its next reset: its driver does not change it immediately"),
        (CommandResult(255, "\nno such luck\n"), DeviceFailed, "could not be reset: no such luck"),
        (CommandResult(255, ""), DeviceFailed, "could not be reset: status 255"),
        (FileNotFoundError(errno.ENOENT, "nvidia-smi"), Busy, "at its next reset"),
        (PermissionError(errno.EACCES, "denied"), DeviceFailed, "nvidia-smi could not be started"),
    ],
)
def test_a_mode_pending_after_a_reset_needs_a_reboot(tmp_path, result, kind, message):
    host = off(tmp_path)
    ports = replace(host.ports, vendor_commands=Smi(host.ports.vendor_commands, result))
    step = SetMig(FIRST, enable=True, was_enabled=False, may_reset=True)
    with pytest.raises(kind, match=message) as raised:
        step.perform(ports)
    assert "reboot the host" in str(raised.value.hint) or kind is DeviceFailed
    with pytest.raises(Failed, match="turns on at the host's next boot"):
        step.undo(ports)
    assert partition_state(host)[0] == (False, True)


def test_a_pending_mode_is_cancelled(tmp_path):
    host = off(tmp_path)
    assert isinstance(outcome(lambda: SetMig(FIRST, enable=True, was_enabled=False).perform(host.ports)), Busy)
    back = SetMig(FIRST, enable=False, was_enabled=False)
    back.perform(host.ports)
    back.verify(host.ports)
    assert partition_state(host)[0] == (False, False)
    SetMig(FIRST, enable=True, was_enabled=False, may_reset=True).perform(host.ports)
    assert partition_state(host)[0] == (True, True)
