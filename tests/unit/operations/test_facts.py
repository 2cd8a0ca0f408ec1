# SPDX-License-Identifier: Apache-2.0
"""Templates: the admin's own comes first, and an unreadable one does not count as missing."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed, NotFound
from vgpuctl.operations.facts import TEMPLATE_DIRECTORY, read_template
from vgpuctl.value import replace


class _Tree:
    def __init__(self, answer):
        self._answer = answer

    def read(self, path):
        assert path == f"{TEMPLATE_DIRECTORY}/vm.xml.j2"
        if isinstance(self._answer, str):
            return self._answer
        raise self._answer


def ports(tmp_path, answer):
    return replace(open_sim_host(tmp_path).ports, sysfs=_Tree(answer))


def test_the_admins_template_comes_before_the_built_in_one(tmp_path):
    assert read_template(ports(tmp_path, "<domain/>"), "vm") == "<domain/>"
    assert "<domain" in read_template(open_sim_host(tmp_path).ports, "vm")


def test_a_template_that_cannot_be_read_is_an_error_and_not_the_built_in_one(tmp_path):
    with pytest.raises(Failed) as raised:
        read_template(ports(tmp_path, PermissionError(13, "Permission denied")), "vm")
    assert raised.value.facts["path"] == f"{TEMPLATE_DIRECTORY}/vm.xml.j2"


def test_a_template_that_is_not_there_is_answered_with_the_built_in_ones(tmp_path):
    with pytest.raises(NotFound) as raised:
        read_template(open_sim_host(tmp_path).ports, "mine")
    assert "built-in template: " in str(raised.value.hint)
