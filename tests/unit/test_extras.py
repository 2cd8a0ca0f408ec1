# SPDX-License-Identifier: Apache-2.0
"""The command that adds a library fits the way in which vgpuctl was installed."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vgpuctl import extras

DEBIAN = "/usr/lib/python3/dist-packages"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own, without Debian's libraries."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != DEBIAN])
    return tmp_path


SED = "sed -i 's/^include-system-site-packages.*/include-system-site-packages = true/'"


def test_pip(prefix: Path) -> None:
    """No hint installs the extra host for one library: pip would compile libvirt's module with it."""
    nvml = "'nvidia-ml-py<14,>=13.595.45'"
    assert extras.install_command("pynvml") == f"{sys.executable} -m pip install {nvml}"
    assert extras.install_command("click") == f"{sys.executable} -m pip install 'click!=8.4.0,>=8.1.3'"
    assert extras.install_command("pycdlib") == f"{sys.executable} -m pip install 'pycdlib>=1.12'"
    assert extras.install_command("paramiko") == f"{sys.executable} -m pip install 'vgpuctl[ssh]'"
    assert extras.install_command("authlib") == f"{sys.executable} -m pip install 'vgpuctl[oidc]'"
    assert extras.install_command("ldap") == f"{sys.executable} -m pip install 'vgpuctl[ldap]'"
    assert "Debian's package python3-ldap" in extras.describe_sources("ldap")


@pytest.mark.parametrize("tool", ["", "pipx_metadata.json", "uv-receipt.toml"])
def test_libvirts_module_comes_from_the_distribution(prefix: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    (prefix / "pyvenv.cfg").touch()
    if tool:
        (prefix / tool).touch()
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    for library in ("libvirt", "libvirtmod"):
        assert extras.install_command(library) == f"apt install python3-libvirt && {SED} {prefix}/pyvenv.cfg"


def test_libvirts_module_for_another_python_is_pips_alone(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    assert extras.install_command("libvirt") == f"{sys.executable} -m pip install 'libvirt-python>=9.0'"


def test_pipx(prefix: Path) -> None:
    (prefix / "pipx_metadata.json").touch()
    assert extras.install_command("paramiko") == "pipx inject vgpuctl 'vgpuctl[ssh]'"


def test_uv_replaces_the_environment_so_its_other_extras_are_named_too(prefix: Path) -> None:
    (prefix / "uv-receipt.toml").touch()
    command, requirement = (
        extras.install_command("highspy").rsplit(" ", 1)[0],
        "vgpuctl[agent,controller,host,ldap,oidc,solver,ssh,top]",
    )
    assert command.startswith("uv tool install --force ")
    words = shlex.split(extras.install_command("highspy"))
    assert words[4].split(" @ ")[0] == requirement, "the environment of these tests has all extras"
    assert shlex.split(extras.install_command("pynvml"))[5:] == ["--with", "nvidia-ml-py<14,>=13.595.45"]


def test_debian_libraries_come_from_debian_where_they_are_visible(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, DEBIAN])
    assert extras.install_command("libvirtmod") == "apt install python3-libvirt"
    assert extras.install_command("pynvml").endswith("-m pip install 'nvidia-ml-py<14,>=13.595.45'")
    assert extras.install_command("zlib") == "apt install python3"


@pytest.mark.parametrize(("version", "has_highspy"), [((3, 11, 2), False), ((3, 13, 5), True)])
def test_the_debian_package_puts_what_debian_lacks_where_only_vgpuctl_sees_it(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], has_highspy: bool
) -> None:
    monkeypatch.setattr(sys, "prefix", extras.PACKAGE_PREFIX)
    monkeypatch.setattr(sys, "path", [*sys.path, DEBIAN])
    monkeypatch.setattr(sys, "version_info", version)
    pip = f"apt install python3-pip && python3 -m pip install --target {extras.LOCAL_LIBRARIES} highspy"
    assert extras.install_command("highspy") == ("apt install python3-highspy" if has_highspy else pip)
    assert extras.install_command("textual") == pip.replace("highspy", "textual")


def test_each_extra_of_the_package_is_known() -> None:
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        optional = tomllib.load(file)["project"]["optional-dependencies"]
    declared = {
        name: {Requirement(line).name for line in optional[name]} for name in optional.keys() - {"all", "dev", "docs"}
    }
    known = {extra: {extras._PIP_NAMES.get(name, name) for name in names} for extra, names in extras.EXTRAS.items()}
    assert declared.keys() == known.keys()
    assert all(declared[extra] <= known[extra] for extra in declared)
    without_compiler = known.keys() - {"ldap"}
    assert json.dumps(sorted(Requirement(optional["all"][0]).extras)) == json.dumps(sorted(without_compiler))
