# SPDX-License-Identifier: Apache-2.0
"""modprobe's files and the loaded driver, as they are read."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.modprobe import driver_version, loaded_parameters, read_modprobe
from vgpuctl.operations.desired_state import ALL_FUNCTIONS_SCOPE
from vgpuctl.scheduler.driver_texts import MODULE_VERSION
from vgpuctl.value import replace


class Tree:
    """Files of a host."""

    def __init__(self, files, closed=None):
        self.files, self.closed = files, closed

    def listdir(self, path):
        if path == self.closed:
            raise PermissionError(13, "Permission denied", path)
        names = sorted({name[len(path) + 1 :].partition("/")[0] for name in self.files if name.startswith(f"{path}/")})
        if not names:
            raise FileNotFoundError(2, "No such file or directory", path)
        return tuple(names)

    def read(self, path):
        if path == self.closed:
            raise PermissionError(13, "Permission denied", path)
        return self.files[path]


FILES = {
    "/etc/modprobe.d/b.conf": "etc b",
    "/etc/modprobe.d/README": "no",
    "/usr/lib/modprobe.d/b.conf": "hidden",
    "/usr/lib/modprobe.d/a.conf": "lib a",
}


def test_the_first_directory_hides_namesakes_of_the_others(tmp_path):
    ports = replace(open_sim_host(tmp_path).ports, sysfs=Tree(FILES))
    result = [(f.path, f.text) for f in read_modprobe(ports)]
    assert result == [("/usr/lib/modprobe.d/a.conf", "lib a"), ("/etc/modprobe.d/b.conf", "etc b")]


@pytest.mark.parametrize("closed", ["/etc/modprobe.d", "/etc/modprobe.d/b.conf"])
def test_an_unreadable_file_is_not_empty(tmp_path, closed):
    ports = replace(open_sim_host(tmp_path).ports, sysfs=Tree(FILES, closed))
    with pytest.raises(Failed, match=f"{closed} cannot be read"):
        read_modprobe(ports)


def test_the_drivers_version_comes_from_the_module_when_nvml_is_silent(tmp_path):
    for nvml in ("present", "absent"):
        text = f'version: 1\nnvidia: {{driver: "535.161.05", nvml: {nvml}}}\ngpus: [{{model: A100}}]\n'
        host = open_sim_host(tmp_path / nvml, text=text)
        assert driver_version(host.ports, observe(host.ports, ALL_FUNCTIONS_SCOPE)) == "535.161.05"
        assert 'RegistryDwords: ""' in (loaded_parameters(host.ports) or "")
    bare = open_sim_host(tmp_path / "bare", "empty")
    assert driver_version(bare.ports, observe(bare.ports, ALL_FUNCTIONS_SCOPE)) is None
    assert loaded_parameters(bare.ports) is None


class WithoutModuleVersion:
    """The files of a host with modules that show no version."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def read(self, path):
        if path == MODULE_VERSION:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._inner.read(path)


def test_the_drivers_version_comes_from_proc_when_the_module_is_silent_too(tmp_path):
    text = 'version: 1\nnvidia: {driver: "535.161.05", nvml: absent}\ngpus: [{model: A100}]\n'
    host = open_sim_host(tmp_path, text=text)
    ports = replace(host.ports, sysfs=WithoutModuleVersion(host.ports.sysfs))
    snapshot = observe(ports, ReadScope(types=True))
    assert driver_version(ports, snapshot) == "535.161.05"
    assert snapshot.gpus[0].has_single_type, "a driver before 550 allows one type at a time"
