# SPDX-License-Identifier: Apache-2.0
"""A directory of wheels: what is used, and everything that is refused before a connection."""

from __future__ import annotations

import re
import shlex
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote import wheelhouse

ROOT = Path(__file__).resolve().parents[3]
NEEDS = (
    "Requires-Dist: click>=8.2\nRequires-Dist: libvirt-python>=9; extra == 'host'\n"
    "Requires-Dist: pycdlib>=1.12\nRequires-Dist: pytest; extra == 'dev'\n"
)


def wheel(directory: Path, name: str, version: str, needs: str = "", tags: str = "py3-none-any") -> Path:
    """Write a wheel that contains only metadata."""
    path = directory / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n{needs}\n")
    return path


def test_the_newest_vgpuctl_is_taken_and_all_else_that_is_a_wheel(tmp_path):
    for version in ("0.9.0", "0.10.0", "0.2"):
        wheel(tmp_path, "vgpuctl", version, NEEDS)
    wheel(tmp_path, "Click", "8.2.1")
    wheel(tmp_path, "pycdlib", "1.14")
    (tmp_path / "libvirt-python-12.8.0.tar.gz").touch()
    result = wheelhouse.read_wheelhouse(str(tmp_path))
    assert result.version == "0.10.0"
    assert [one.name for one in result.wheels] == ["click", "pycdlib", "vgpuctl"]
    assert result.size_bytes == sum(len(one.content) for one in result.wheels)
    assert not result.has("libvirt-python")


def test_a_release_is_newer_than_what_was_tried_before_it(tmp_path):
    for version in ("0.2.0rc1", "0.2.0", "0.2.0.dev3"):
        wheel(tmp_path, "vgpuctl", version)
    assert wheelhouse.read_wheelhouse(str(tmp_path)).version == "0.2.0"


def test_versions_are_in_the_order_of_the_specification():
    rising = [
        "0.9", "1.0.dev1", "1.0.dev2", "1.0a1.dev1", "1.0a1", "1.0-alpha.2", "1.0b1", "1.0rc1.dev1", "1.0rc1", "1.0.c2",
        "1.0rc10", "1.0", "1.0.post1.dev1", "1.0.post1", "1.0-2", "1.0.1", "1.1a1", "1.1", "1.10", "2", "1!0.1",
    ]  # fmt: skip
    assert sorted(reversed(rising), key=wheelhouse.version_key) == rising == sorted(rising, key=Version)
    assert wheelhouse.version_key("1.0") == wheelhouse.version_key("1") == wheelhouse.version_key("v1.0.0+ubuntu1")
    assert wheelhouse.version_key("1.0_other") is wheelhouse.version_key("") is None


def test_the_oldest_python_is_what_the_wheel_says(tmp_path):
    wheel(tmp_path, "vgpuctl", "0.1.0", "Requires-Python: >=3.13\n")
    assert wheelhouse.read_wheelhouse(str(tmp_path)).oldest_python == (3, 13)


def test_a_wheelhouse_without_a_name_is_not_one_that_is_gone():
    with pytest.raises(InvalidInput, match="--wheelhouse is empty"):
        wheelhouse.read_wheelhouse("")


def test_another_wheel_makes_another_wheelhouse(tmp_path):
    wheel(tmp_path, "vgpuctl", "0.1.0")
    one = wheelhouse.read_wheelhouse(str(tmp_path)).digest
    assert wheelhouse.read_wheelhouse(str(tmp_path)).digest == one
    wheel(tmp_path, "click", "8.4")
    assert wheelhouse.read_wheelhouse(str(tmp_path)).digest != one


def test_what_is_needed_and_not_there_is_named(tmp_path):
    wheel(tmp_path, "vgpuctl", "0.1.0", NEEDS)
    with pytest.raises(
        InvalidInput, match=r"has no wheel of click, pycdlib, which vgpuctl-0\.1\.0-py3-none-any\.whl needs"
    ):
        wheelhouse.read_wheelhouse(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "has no wheels: it contains nothing"),
        (["notes.txt", "vgpuctl-0.1.0.tar.gz"], "has no wheels: it contains 2 other files"),
        (["vgpuctl.whl"], "is not named like a wheel"),
        (["vgpuctl-0.1.0-py3-none-any.whl"], "is not a wheel, or is incomplete: 4 bytes"),
    ],
)
def test_what_is_no_wheelhouse_is_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_text("half")
    with pytest.raises(InvalidInput, match=message):
        wheelhouse.read_wheelhouse(str(tmp_path))


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ((), "has 1 wheels, but none of vgpuctl"),
        (("0.2.0", "0.2.0_other"), "has several wheels of vgpuctl"),
        (("0.2", "0.2.0"), "has several wheels of vgpuctl"),
    ],
)
def test_exactly_one_vgpuctl_wheel_is_allowed(tmp_path, versions, message):
    wheel(tmp_path, "click", "8.2.1")
    for version in versions:
        wheel(tmp_path, "vgpuctl", version)
    with pytest.raises(InvalidInput, match=message):
        wheelhouse.read_wheelhouse(str(tmp_path))


def test_a_wheel_that_is_only_called_so_is_refused(tmp_path):
    wheel(tmp_path, "other", "0.1.0").rename(tmp_path / "vgpuctl-0.1.0-py3-none-any.whl")
    with pytest.raises(InvalidInput, match="is not a wheel of vgpuctl"):
        wheelhouse.read_wheelhouse(str(tmp_path))


def test_an_oversized_wheelhouse_is_refused_unread(tmp_path):
    with open(wheel(tmp_path, "vgpuctl", "0.1.0"), "ab") as file:
        file.truncate(wheelhouse.MAX_BYTES + (1 << 20))
    with pytest.raises(InvalidInput, match="has 513 MiB of wheels, and at most 512 MiB are copied"):
        wheelhouse.read_wheelhouse(str(tmp_path))


def test_no_directory_is_an_error(tmp_path):
    with pytest.raises(NotFound, match=r"wheelhouse .* does not exist"):
        wheelhouse.read_wheelhouse(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be read: Not a directory"):
        wheelhouse.read_wheelhouse(str(tmp_path / "file"))


def test_a_link_to_a_wheel_that_is_gone_is_not_a_wheelhouse_that_is(tmp_path):
    wheel(tmp_path, "vgpuctl", "0.1.0")
    (tmp_path / "click-8.2.1-py3-none-any.whl").symlink_to("nowhere")
    with pytest.raises(InvalidInput, match=r"click-8\.2\.1-py3-none-any\.whl cannot be read: No such file"):
        wheelhouse.read_wheelhouse(str(tmp_path))


def test_the_documents_download_what_vgpuctl_needs():
    text = re.search(r"pip download (.*?)```", (ROOT / "docs/reference/remote.md").read_text(), re.DOTALL)
    assert text
    downloaded = {word for word in shlex.split(text[1].replace("\\\n", "")) if not word.startswith("-")} - {"wheels"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["host"]]
    assert downloaded == {one for one in needed if not one.startswith(wheelhouse.DISTRO_PACKAGE)}
