# SPDX-License-Identifier: Apache-2.0
"""host.yaml in a snapshot: each GPU's entry; a broken file is a warning and stops placement."""

from __future__ import annotations

import os

import pytest

from tests.hosts import context, create, open_sim_host, request, run_reconcile, start
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.request import PlacementSpec
from vgpuctl.observe import ReadScope, observe, observe_devices
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations import queries
from vgpuctl.operations.claim import recheck_scope
from vgpuctl.operations.desired_state import cordon
from vgpuctl.operations.devices import has_missing_devices
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.value import replace

GPU = "0000:3b:00.0"


class Reads:
    """A sysfs that records which files are read."""

    def __init__(self, sysfs):
        self.sysfs, self.paths = sysfs, []

    def __getattr__(self, name):
        return getattr(self.sysfs, name)

    def read(self, path):
        self.paths.append(path)
        return self.sysfs.read(path)


CONFIGURED = f'version: 1\ngpus:\n  "{GPU}": {{mode: vgpu, cordoned: true}}\n'


def test_each_gpu_has_its_entry(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text(CONFIGURED)
    observed = observe(host.ports, ReadScope())
    assert {g.address: (g.desired_mode, g.cordoned) for g in observed.gpus if g.desired_mode or g.cordoned} == {
        GPU: (GpuMode.VGPU, True)
    }
    assert observed.host_file_problem is None


def test_observing_under_the_lock_reads_host_yaml_again(tmp_path):
    host = open_sim_host(tmp_path)
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\nplacement: {policy: breadth}\n")
    before = observe(host.ports, ReadScope(types=True))
    assert (before.placement_spec, before.partial) == (PlacementSpec("breadth"), False)
    vgpus = choose_vgpus(before, request("A100-4C"), "6c9a3b4e-0000-4000-8000-000000000000")

    def locked():
        return observe_devices(host.ports, recheck_scope(before, vgpus), vms=before.vms, status=before.hypervisor)

    same = locked()
    assert ([g.cordoned for g in same.gpus], same.placement_spec, same.partial) == (
        [False],
        before.placement_spec,
        True,
    )
    host.sim.host_file.write_text("version: 1\ngpus: {all: {cordoned: true}}\n")
    assert [g.cordoned for g in locked().gpus] == [True]
    host.sim.host_file.write_text("broken: [")
    assert locked().host_file_problem is not None


def test_with_a_broken_file_a_vm_that_exists_still_starts(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    host.sim.host_file.write_text("version: 1\ngpus: {'x:': }\n")
    assert start(host.ports, "vm").data.state == "running"


@pytest.mark.parametrize("observed", ["list_gpus", "list_profiles", "list_vms", "show_gpu"])
@pytest.mark.parametrize("text", ["version: 1\ndefaults: {nonsense: 1}\n", "version: 1\nboot: ]\n"])
def test_read_commands_warn_of_a_broken_file_without_gpus(tmp_path, observed, text):
    host = open_sim_host(tmp_path)
    host.sim.host_file.write_text(text)
    arguments = {"show_gpu": (GPU,), "list_vms": (context(),)}.get(observed, ())
    warned = [
        w for w in getattr(queries, observed)(host.ports, *arguments).warnings if "/etc/vgpuctl/host.yaml:2:" in w
    ]
    assert len(warned) == 1
    assert "refuses new vGPUs and changes of GPUs until it is fixed" in warned[0]
    with pytest.raises(InvalidInput):
        read_host_spec(host.ports)
    with pytest.raises(InvalidInput, match=r"host\.yaml:2"):
        create(host.ports, request("A100-4C"))


def hints(host):
    """Return the hints of changes that a broken host.yaml stops, of doctor and of the list of GPUs."""
    result = []
    for act in (
        lambda: create(host.ports, request("A100-4C")),
        lambda: cordon(host.ports, context(), GPU, cordoned=True),
        lambda: run_reconcile(host.ports),
    ):
        with pytest.raises(InvalidInput, match=r"host\.yaml") as raised:
            act()
        result.append(raised.value.hint)
    (warned,) = [w for w in queries.list_gpus(host.ports).warnings if "host.yaml" in w]
    return [*result, warned, *(check.fix for check in diagnose(host.ports, ("host-file",)).checks)]


@pytest.mark.parametrize("text", ["", "\n \n", "# version: 1\n#gpus: {}\n", "gpus: {}\n", "\0" * 40])
def test_an_emptied_file_warns_and_stops_changes_with_a_hint(tmp_path, text):
    host = open_sim_host(tmp_path)
    host.sim.host_file.write_text(text)
    assert all("correct or remove" in hint and "apply --undo" not in hint for hint in hints(host))
    assert host.sim.host_file.read_text() == text
    host.sim.host_file.unlink()
    assert cordon(host.ports, context(), GPU, cordoned=True).changed
    assert cordon(host.ports, context(), GPU, cordoned=False).changed
    host.sim.host_file.write_text(text)
    assert all("vgpuctl apply --undo" in hint for hint in hints(host)), "a version is kept now"


@pytest.mark.parametrize("kind", ["pipe", "endless", "directory", "large"])
def test_a_non_regular_file_is_refused(tmp_path, kind):
    host = open_sim_host(tmp_path)
    path = host.sim.host_file
    path.parent.mkdir(parents=True, exist_ok=True)
    {
        "pipe": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "large": lambda: (path.touch(), os.truncate(path, 3 << 30)),
    }[kind]()
    assert any("host.yaml cannot be read: it is" in w for w in queries.list_gpus(host.ports).warnings)
    with pytest.raises(InvalidInput, match=r"host\.yaml cannot be read: it is"):
        cordon(host.ports, context(), GPU, cordoned=True)


def test_bytes_that_are_not_utf_8_are_refused(tmp_path):
    host = open_sim_host(tmp_path)
    host.sim.host_file.write_bytes(b"version: 1 # caf\xe9\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml is not UTF-8 text"):
        read_host_spec(host.ports)


def test_restoring_a_vms_devices_does_not_read_the_file(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = observe(host.ports, ReadScope()).vms[0]
    reads = Reads(host.ports.sysfs)
    assert not has_missing_devices(replace(host.ports, sysfs=reads), vm, vm.record)
    assert [path for path in reads.paths if "current_vgpu_type" in path]
    assert not [path for path in reads.paths if "host.yaml" in path]
