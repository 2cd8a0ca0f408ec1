# SPDX-License-Identifier: Apache-2.0
"""The root element of a domain's XML, parsed without entities and without network access."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from vgpuctl.errors import LibvirtFailed

if TYPE_CHECKING:
    from lxml import etree


def parse_root(xml: str, *, keep_comments: bool = False) -> etree._Element:
    """Return the root element. `keep_comments`: keep an admin's comments, for XML that is written back.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    from lxml import etree

    try:
        root = etree.fromstring(xml, _parser(keep_comments=keep_comments))
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"a domain's XML cannot be read: {exc}") from exc
    if root.tag != "domain":
        raise LibvirtFailed(f"a domain's XML starts with <{root.tag}>, not <domain>")
    return root


@cache
def _parser(*, keep_comments: bool) -> etree.XMLParser:
    from lxml import etree

    return etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=not keep_comments, remove_pis=not keep_comments
    )
