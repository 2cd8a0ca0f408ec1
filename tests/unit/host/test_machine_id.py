# SPDX-License-Identifier: Apache-2.0
"""The machine's id."""

import pytest

from vgpuctl.host.machine_id import read_machine_id

ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"


def test_it_is_read_below_the_root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text(f"{ID}\n")
    assert read_machine_id(str(tmp_path)) == ID
    assert read_machine_id(f"{tmp_path}/") == ID


def test_dbus_keeps_one_too(tmp_path):
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").write_text(ID)
    assert read_machine_id(str(tmp_path)) == ID


@pytest.mark.parametrize("target", ["/etc/machine-id", "../../../../../../etc/machine-id"])
def test_dbuss_link_leads_to_the_captures_own_file(tmp_path, target):
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").symlink_to(target)
    assert read_machine_id(str(tmp_path)) is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("uninitialized\n")
    assert read_machine_id(str(tmp_path)) is None
    (tmp_path / "etc/machine-id").write_text(ID)
    assert read_machine_id(str(tmp_path)) == ID


@pytest.mark.parametrize("text", [None, "", "uninitialized\n", "xyz"])
def test_a_host_that_was_never_booted_has_none(tmp_path, text):
    (tmp_path / "etc").mkdir()
    if text is not None:
        (tmp_path / "etc/machine-id").write_text(text)
    assert read_machine_id(str(tmp_path)) is None
