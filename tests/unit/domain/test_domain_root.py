# SPDX-License-Identifier: Apache-2.0
"""Only a domain's XML is read, without entities; comments stay where the XML is written back."""

from __future__ import annotations

import pytest
from lxml import etree

from vgpuctl.domain.domain_root import parse_root
from vgpuctl.errors import LibvirtFailed

COMMENTED = "<domain><!-- a comment --><name>vm</name></domain>"


def test_comments_are_kept_only_on_request() -> None:
    assert [child.tag for child in parse_root(COMMENTED)] == ["name"]
    assert etree.tostring(parse_root(COMMENTED, keep_comments=True), encoding="unicode") == COMMENTED


def test_entities_are_not_resolved() -> None:
    text = '<!DOCTYPE domain [<!ENTITY file SYSTEM "file:///etc/passwd">]><domain><name>&file;</name></domain>'
    assert "<name>&file;</name>" in etree.tostring(parse_root(text), encoding="unicode")


@pytest.mark.parametrize("text", ["", "<domain>", "<network/>"])
def test_other_text_is_an_error_of_libvirt(text: str) -> None:
    with pytest.raises(LibvirtFailed, match="a domain's XML"):
        parse_root(text)
