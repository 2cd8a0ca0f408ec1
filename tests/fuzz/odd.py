# SPDX-License-Identifier: Apache-2.0
"""Generates odd values, and changes valid YAML and XML documents into invalid ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from lxml import etree

TEXTS = (
    "",
    " ",
    "\0",
    "\x1b[31m",
    "\ud800",
    "\u202e\u200f",
    "\ufeff",
    "\U0001f600",
    "²",
    "٣",
    "-1",
    "0",
    "9" * 5000,
    "1e400",
    "nan",
    "0x10",
    "017",
    "1_0",
    "~",
    "null",
    "*a",
    "&a x",
    "!!binary x",
    "{{",
    "{% raw %}",
    "../../etc/passwd",
    "/dev/zero",
    "x" * 70_000,
    "A100-4C:99999999999",
    "A100-4C:0",
    "0000:3b:00.0",
    "0000:ff:1f.7",
    "3b:00",
    "%s%n",
    "$(id)",
    "a/b",
    "'",
    '"',
    "<x/>",
    "]]>",
    "&amp;",
    "\n\n",
    "a\tb",
    "all",
    "99999999TiB",
    "0.0000001GiB",
    "4G",
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1 << 70,
    1.5,
    -0.0,
    [],
    {},
    [[]],
    {"": ""},
    [None],
    {"a": {"a": {}}},
)


def value(rng: Random) -> Any:
    """Return an odd value that JSON can represent."""
    return rng.choice(TEXTS) if rng.random() < 0.6 else copy.deepcopy(rng.choice(OTHERS))


def text(rng: Random, given: str = "") -> str:
    """Return an odd text, or a small change of the given one."""
    if not given or rng.random() < 0.4:
        return rng.choice(TEXTS)
    at = rng.randrange(len(given) + 1)
    return rng.choice(
        (
            given[:at] + rng.choice(TEXTS) + given[at:],
            given[:at],
            given + given,
            given[:at] + given[at + 1 :],
            given.swapcase(),
            f" {given} ",
        )
    )


def nested(rng: Random, inner: Any) -> Any:
    """Return the value nested in many lists or mappings."""
    for _ in range(rng.choice((1, 3, 70, 300))):
        inner = [inner] if rng.random() < 0.5 else {"a": inner}
    return inner


def changed(rng: Random, document: Any) -> Any:
    """Return the document after one to four changes: values deleted, repeated, swapped, nested or replaced."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document = _one_change(rng, document)
    return document


def _one_change(rng: Random, document: Any) -> Any:
    places = list(_places(document))
    if not places:
        return value(rng)
    owner, key = rng.choice(places)
    other, other_key = rng.choice(places)
    kind = rng.randrange(7)
    if kind == 0:
        del owner[key]
    elif kind == 1:
        owner[key] = value(rng)
    elif kind == 2:
        owner[key] = nested(rng, owner[key])
    elif kind == 3:
        owner[key] = copy.deepcopy(other[other_key])
    elif kind == 4 and isinstance(owner, dict):
        owner[text(rng, str(key))] = owner.pop(key)
    elif kind == 5:
        owner[key] = (
            text(rng, str(owner[key])) if isinstance(owner[key], (str, int)) else [owner[key]] * rng.choice((2, 500))
        )
    elif isinstance(owner, list):
        owner.append(copy.deepcopy(owner[key]))
    else:
        owner[text(rng)] = value(rng)
    return document


def _places(document: Any) -> Any:
    """Yield every (owner, key) of a tree."""
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, inner in entries:
        yield document, key
        yield from _places(inner)


def yaml_text(rng: Random, document: Any) -> bytes:
    """Return a changed copy of a valid document as text. The text may be broken too."""
    if rng.random() < 0.85:
        document = changed(rng, document)
    written = json.dumps(document, ensure_ascii=rng.random() < 0.3, indent=rng.choice((None, 1, 2)))
    if rng.random() < 0.4:
        written = _broken(rng, written)
    return written.encode("utf-8", "surrogatepass")


def _broken(rng: Random, written: str) -> str:
    at = rng.randrange(len(written) + 1)
    bomb = "".join(f"b{n}: &b{n} [{'x' if n == 0 else f'*b{n - 1}, *b{n - 1}'}]\n" for n in range(40))
    ways: tuple[Callable[[], str], ...] = (
        lambda: written[:at],
        lambda: f"{written[:at]}\0{written[at:]}",
        lambda: f"{written[:at]}{rng.choice(TEXTS)}{written[at:]}",
        lambda: f"{written[:at]}{rng.choice('[]{},:&*!|>%@`-#?')}{written[at:]}",
        lambda: written + written,
        lambda: f"---\n{written}\n---\n{written}",
        lambda: f"a: &a [*a]\n{written}",
        lambda: bomb,
        lambda: "- " * rng.choice((50, 3000)) + "x",
        lambda: "[" * rng.choice((50, 3000)),
        lambda: "? " * 3000,
        lambda: f"%YAML 9.9\n---\n{written}",
        lambda: f"<<: {written}",
        lambda: written.replace('"', "'"),
        lambda: "",
        lambda: "# nothing\n",
    )
    return rng.choice(ways)()


def xml_text(rng: Random, given: str) -> str:
    """Return XML with changed elements, attributes and texts. It usually remains well-formed."""
    root = etree.fromstring(given)
    for _ in range(rng.randint(1, 5)):
        _change_element(rng, root)
    written = etree.tostring(root, encoding="unicode")
    if rng.random() < 0.15:
        at = rng.randrange(len(written))
        written = rng.choice((written[:at], written[:at] + "<", "", "<domain/>", "<" * 3000, "<a>" * 3000))
    return written


def _change_element(rng: Random, root: Any) -> None:
    element = rng.choice(list(root.iter()))
    parent = element.getparent()
    kind = rng.randrange(7)
    if kind == 0 and parent is not None:
        parent.remove(element)
    elif kind == 1 and parent is not None:
        parent.append(copy.deepcopy(element))
    elif kind == 2 and element.attrib:
        name = rng.choice(list(element.attrib))
        element.set(name, _for_xml(text(rng, element.get(name))))
    elif kind == 3 and element.attrib:
        del element.attrib[rng.choice(list(element.attrib))]
    elif kind == 4:
        element.text = _for_xml(text(rng, element.text or ""))
    elif kind == 5 and parent is not None:
        for _ in range(rng.choice((1, 5, 100))):
            parent = etree.SubElement(parent, element.tag)
    elif kind == 6:
        element.text = _for_xml(json.dumps(nested(rng, value(rng)), ensure_ascii=False))


def _for_xml(given: str) -> str:
    """Remove characters that XML cannot hold. libvirt does not write them either."""
    return "".join(
        c for c in given if c in "\t\n\r" or " " <= c < "\ud800" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )


def lines(rng: Random, document: str) -> bytes:
    """Return a text as bytes after one to four changes: lines deleted, repeated, swapped or replaced."""
    rows = document.split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(rows))
        kind = rng.randrange(5)
        if kind == 0:
            del rows[at : at + rng.choice((1, 1, 5))]
        elif kind == 1:
            rows[at:at] = [rows[at]] * rng.choice((1, 2, 2000))
        elif kind == 2:
            rows[at] = text(rng, rows[at])
        elif kind == 3:
            name, sign, given = rows[at].partition(rng.choice("=:>"))
            rows[at] = name + sign + text(rng, given)
        else:
            rows.insert(rng.randrange(len(rows) + 1), rows[at])
        rows = rows or [""]
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
    content = "\n".join(rows).encode(encoding, "replace")
    return damaged_bytes(rng, content) if rng.random() < 0.1 else content


def damaged_bytes(rng: Random, content: bytes) -> bytes:
    """Return bytes of which some are changed, or the end is missing; some stay as they are."""
    changed = bytearray(content)
    for _ in range(rng.choice((0, 1, 1, 4))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed) + 1)]) if rng.random() < 0.2 else bytes(changed)
