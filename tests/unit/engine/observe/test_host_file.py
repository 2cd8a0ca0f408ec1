# SPDX-License-Identifier: Apache-2.0
"""host.yaml in a look at the host: what it says of each GPU, and a broken file that is told and stops placing."""

from __future__ import annotations

import os

import pytest

from tests.worlds import Silent, create, mend, open_host, start, stop, wish
from vgpuctl.engine import queries
from vgpuctl.engine.claim import narrow
from vgpuctl.engine.cordon import cordon
from vgpuctl.engine.devices import missing_devices
from vgpuctl.engine.diagnose import diagnose
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Mode
from vgpuctl.model.wish import PlacementSpec
from vgpuctl.plan.choose import choose
from vgpuctl.value import replace

GPU = "0000:3b:00.0"


class Reads:
    """A sysfs that notes which files are read."""

    def __init__(self, sysfs):
        self.sysfs, self.paths = sysfs, []

    def __getattr__(self, name):
        return getattr(self.sysfs, name)

    def read(self, path):
        self.paths.append(path)
        return self.sysfs.read(path)


SAID = f'version: 1\ngpus:\n  "{GPU}": {{mode: vgpu, cordoned: true}}\n'


def test_each_gpu_has_what_is_said_of_it(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.write_text(SAID)
    look = observe(host.world, Want())
    assert {g.address: (g.desired, g.cordoned) for g in look.gpus if g.desired or g.cordoned} == {
        GPU: (Mode.VGPU, True)
    }
    assert look.host_file_problem is None


def test_the_look_under_the_lock_sees_what_host_yaml_says_by_then(tmp_path):
    host = open_host(tmp_path)
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\nplacement: {policy: breadth, demand: {A100-4C: 2.5}}\n")
    before = observe(host.world, Want(types=True))
    assert (before.placement, before.partial) == (PlacementSpec("breadth", {"A100-4C": 2.5}), False)
    vgpus = choose(before, wish("A100-4C"), "6c9a3b4e-0000-4000-8000-000000000000")

    def locked():
        return observe_devices(host.world, narrow(before, vgpus), vms=before.vms, status=before.hypervisor)

    same = locked()
    assert ([g.cordoned for g in same.gpus], same.placement, same.partial) == ([False], before.placement, True)
    host.sim.host_file.write_text("version: 1\ngpus: {all: {cordoned: true}}\n")
    assert [g.cordoned for g in locked().gpus] == [True]
    host.sim.host_file.write_text("broken: [")
    assert locked().host_file_problem is not None


def test_a_broken_file_is_a_warning_for_who_looks_and_an_error_for_who_places(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    host.sim.host_file.write_text("version: 1\ngpus: {'x:': }\n")
    assert any("/etc/vgpuctl/host.yaml:2" in w for w in queries.list_gpus(host.world).warnings)
    with pytest.raises(InvalidInput, match=r"host\.yaml"):
        create(host.world, wish("A100-4C"))
    stop(host.world, "vm")
    assert start(host.world, "vm").data["state"] == "running"


@pytest.mark.parametrize("look", ["list_gpus", "list_profiles", "list_vms", "show_gpu"])
@pytest.mark.parametrize("text", ["version: 1\ndefaults: {nonsense: 1}\n", "version: 1\nboot: ]\n"])
def test_every_command_that_looks_warns_of_a_broken_file_that_says_nothing_of_gpus(tmp_path, look, text):
    host = open_host(tmp_path)
    host.sim.host_file.write_text(text)
    arguments = (GPU,) if look == "show_gpu" else ()
    warned = [w for w in getattr(queries, look)(host.world, *arguments).warnings if "/etc/vgpuctl/host.yaml:2:" in w]
    assert len(warned) == 1
    assert "refused until it is fixed" in warned[0]
    with pytest.raises(InvalidInput):
        read_host_spec(host.world)
    with pytest.raises(InvalidInput, match=r"host\.yaml:2"):
        create(host.world, wish("A100-4C"))


@pytest.mark.parametrize("text", ["", "\n \n", "# version: 1\n#gpus: {}\n", "gpus: {}\n", "\0" * 40])
def test_a_file_that_was_emptied_is_told_stops_changes_and_names_the_way_back(tmp_path, text):
    host = open_host(tmp_path)
    host.sim.host_file.write_text(text)
    (warned,) = [w for w in queries.list_gpus(host.world).warnings if "host.yaml" in w]
    assert "correct it, or remove it" in warned
    job = {"dry_run": False, "progress": Silent()}
    for act in (lambda: create(host.world, wish("A100-4C")), lambda: cordon(host.world, GPU, cordoned=True, **job)):
        with pytest.raises(InvalidInput, match=r"host\.yaml") as raised:
            act()
        assert "apply --undo" not in raised.value.hint, "no version is kept"
    assert [fix for fix in broken(host.world) if "correct it, or remove it" in fix], "and doctor says so too"
    assert host.sim.host_file.read_text() == text
    host.sim.host_file.unlink()
    assert cordon(host.world, GPU, cordoned=True, **job).changed
    assert cordon(host.world, GPU, cordoned=False, **job).changed
    host.sim.host_file.write_text(text)
    assert "vgpuctl apply --undo" in queries.list_gpus(host.world).warnings[0]
    for act in (lambda: create(host.world, wish("A100-4C")), lambda: cordon(host.world, GPU, cordoned=True, **job)):
        with pytest.raises(InvalidInput) as raised:
            act()
        assert "vgpuctl apply --undo" in raised.value.hint
    with pytest.raises(InvalidInput) as raised:
        mend(host.world)
    assert "vgpuctl apply --undo" in raised.value.hint
    assert [fix for fix in broken(host.world) if "vgpuctl apply --undo" in fix]


def broken(world):
    """What doctor says that helps against a broken host.yaml."""
    return [check["fix"] for check in diagnose(world, ("host-file",))["checks"]]


@pytest.mark.parametrize("kind", ["pipe", "endless", "directory", "large"])
def test_what_is_no_host_file_is_refused_at_once(tmp_path, kind):
    host = open_host(tmp_path)
    path = host.sim.host_file
    path.parent.mkdir(parents=True, exist_ok=True)
    {
        "pipe": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "large": lambda: (path.touch(), os.truncate(path, 3 << 30)),
    }[kind]()
    assert any("host.yaml cannot be read: it is" in w for w in queries.list_gpus(host.world).warnings)
    with pytest.raises(InvalidInput, match=r"host\.yaml cannot be read: it is"):
        cordon(host.world, GPU, cordoned=True, dry_run=False, progress=Silent())


def test_bytes_that_are_no_text_are_told_as_such(tmp_path):
    host = open_host(tmp_path)
    host.sim.host_file.write_bytes(b"version: 1 # caf\xe9\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml is not UTF-8 text"):
        read_host_spec(host.world)


def test_what_makes_a_vms_devices_again_does_not_read_the_file(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"), start=False)
    vm = observe(host.world, Want()).vms[0]
    reads = Reads(host.world.sysfs)
    assert not missing_devices(replace(host.world, sysfs=reads), vm, vm.promise)
    assert [path for path in reads.paths if "current_vgpu_type" in path]
    assert not [path for path in reads.paths if "host.yaml" in path]
