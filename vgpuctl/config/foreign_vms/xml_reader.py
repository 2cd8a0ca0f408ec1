# SPDX-License-Identifier: Apache-2.0
"""Read XML from another hypervisor without entities and without network, with the line of each element.

A document type is refused before any parser sees it: only it can declare entities, and no OVF or domain XML has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vgpuctl.config.spec_text import in_one_line

if TYPE_CHECKING:
    from lxml import etree

    from vgpuctl.config.foreign_vms.imported import Source

MAX_ELEMENTS = 20_000
"""More than any VM's file has: a file of 1 MiB could have 250,000."""
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,1000}\?>")
_DOCTYPE = re.compile(r"<!(DOCTYPE|ENTITY)", re.IGNORECASE)
_ROOT = re.compile(r"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")


def root_name(source: Source, text: str) -> str:
    """Return the name of the first element, without its prefix.

    Raises:
        InvalidInput: the text has a document type, or no element.
    """
    doctype = _DOCTYPE.search(text)
    if doctype is not None:
        raise source.error(
            text.count("\n", 0, doctype.start()) + 1,
            "a document type (<!DOCTYPE) is not allowed: it can declare entities, and no VM's file needs one",
            hint="remove it, and write what the entities stand for",
        )
    match = _ROOT.search(text)
    if match is None:
        raise source.error(1, "this is XML without an element")
    return match[1]


def parse_xml(source: Source, text: str) -> etree._Element:
    """Return the root element; its comments are not in it.

    Raises:
        InvalidInput: the text is not XML, or has more than `MAX_ELEMENTS` elements.
    """
    from lxml import etree

    root_name(source, text)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    declaration = _DECLARATION.match(text)
    if declaration is not None:  # it names the encoding of the file, and this is text already
        text = "\n" * declaration[0].count("\n") + text[declaration.end() :]
    try:
        root = etree.fromstring(text.lstrip(" \t"), parser)
    except etree.XMLSyntaxError as error:
        raise source.error(error.lineno or 1, f"this is not XML: {_without_place(error)}") from error
    except ValueError as error:
        raise source.error(1, f"this is not XML: {error}") from error
    number = sum(1 for _ in root.iter())
    if number > MAX_ELEMENTS:
        raise source.error(1, f"it has {number} elements; at most {MAX_ELEMENTS} are allowed")
    return root


def local_name(element: etree._Element) -> str:
    """Return an element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def children(element: etree._Element, *names: str) -> Iterator[etree._Element]:
    """Yield the children with one of these names, in whatever namespace; without names all of them."""
    for child in element:
        if isinstance(child.tag, str) and (not names or local_name(child) in names):
            yield child


def first(element: etree._Element | None, *path: str) -> etree._Element | None:
    """Return the first child with this name, or the first one below it; None if it is missing."""
    for name in path:
        element = None if element is None else next(children(element, name), None)
    return element


def attribute(element: etree._Element | None, name: str) -> str | None:
    """Return an attribute, in whatever namespace; None if the element or the attribute is missing."""
    if element is None:
        return None
    return next((str(value) for key, value in element.attrib.items() if str(key).rpartition("}")[2] == name), None)


def content(element: etree._Element | None) -> str:
    """Return an element's text; empty if the element is missing."""
    return "" if element is None else str(element.text or "").strip(" \t\n")


def shown(element: etree._Element) -> str:
    """Return the beginning of an element with its attributes, for messages: at most 80 characters."""
    attributes = "".join(f" {key!s}={value!a}" for key, value in element.attrib.items())
    return f"<{local_name(element)}{attributes}>"[:80]


def line_of(element: etree._Element) -> int:
    """Return the line of an element."""
    line: object = element.sourceline
    return line if isinstance(line, int) else 1


def _without_place(error: etree.XMLSyntaxError) -> str:
    text = re.sub(r", line \d+, column \d+.*", "", str(error.msg or error), flags=re.DOTALL)
    return in_one_line(text)[:200]
