# SPDX-License-Identifier: Apache-2.0
"""Change what host.yaml says of one GPU or vGPU, text in and text out: comments, order and quotes stay as they are.

The result is read by the same parser as every host.yaml before it is handed back, so that nothing is ever written
that vgpuctl itself would refuse.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import normal_pci
from vgpuctl.spec.host import VERSION, HostSpec, as_written, parse_host_spec, said_of
from vgpuctl.value import NOTHING, Value, replace

_WIDEST = 4096
_Path = tuple[str, ...]
_TOP: _Path = ()
"""Stands for the text's first line: what is above it stays above it, also when that line is `---`."""


def edit_gpu(text: str | None, address: str, changes: Mapping[str, object], name: str) -> str:
    """Return host.yaml with some keys of one GPU (or model, or `all`) set, or taken out where the new value is None.

    `text` None: there is no file yet. A GPU of which nothing is said any more is taken out. `name` is the file's path,
    for messages. A change that says what is there already returns the text as it was. Every line that is only a
    comment stays, before the key it stood before; when that key goes, before the next one.

    Raises:
        InvalidInput: the text, or what would become of it, is no host.yaml; or a comment would be lost.
    """
    return _entry_edited(text, _Place("gpus", address), changes, name)


def edit_vgpu(text: str | None, vgpu: str, changes: Mapping[str, object], name: str) -> str:
    """Return host.yaml with the keys of one entry of `vgpus:` set, or taken out; otherwise as `edit_gpu`.

    Raises:
        InvalidInput: as `edit_gpu`.
    """
    return _entry_edited(text, _Place("vgpus", vgpu), changes, name)


class _Place(Value):
    """An entry of host.yaml: `section` is "gpus" or "vgpus", `key` an address in the kernel's spelling, or a name."""

    section: str
    key: str

    def said(self, host: HostSpec) -> Value | None:
        """Return what a host.yaml says there, None for nothing."""
        return self.all(host).get(self.key)

    def all(self, host: HostSpec) -> Mapping[str, Value]:
        """Return every entry of the section."""
        found: Mapping[str, Value] = getattr(host, self.section)
        return found

    def says(self, host: HostSpec, changes: Mapping[str, object]) -> bool:
        """Say whether the entry is as these changes make it."""
        said = said_of(self.said(host), changes)
        return all(said[key] == as_written(value) for key, value in changes.items())


def _entry_edited(text: str | None, place: _Place, changes: Mapping[str, object], name: str) -> str:
    if text is None:
        return _checked(_edited(None, place, changes), None, place, changes, name)
    if place.says(parse_host_spec(text, name), changes):
        return text
    bare, apart = _without_comments(text)
    return _checked(_with_comments(_edited(bare, place, changes), apart), text, place, changes, name)


def _edited(text: str | None, place: _Place, changes: Mapping[str, object]) -> str:
    """Return the text with the keys set and taken out; it has no line that is only a comment."""
    yaml = _writer(text or "")
    document = yaml.load(text) if text else None
    if document is None:
        document = CommentedMap(version=VERSION)
    entries = document.get(place.section)
    if entries is None:
        entries = document[place.section] = CommentedMap()
    spelled = next((key for key in entries if place.key in (str(key), normal_pci(str(key)))), None)
    entry = entries.get(spelled) if spelled is not None else None
    if entry is None:
        spelled = _quoted(place.key) if spelled is None else spelled
        entry = entries[spelled] = CommentedMap()
    _set(entry, changes)
    if not entry:
        del entries[spelled]
    if not entries:
        del document[place.section]
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


def _set(entry: Any, changes: Mapping[str, object]) -> None:
    for key, value in changes.items():
        if value is None:
            entry.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(entry.get(key), Mapping):
            _set(entry[key], {**dict.fromkeys(entry[key]), **value})
        elif isinstance(value, Mapping):
            entry[key] = CommentedMap(value)
        elif isinstance(value, list | tuple):
            entry[key] = CommentedSeq(value)
            entry[key].fa.set_flow_style()
        else:
            entry[key] = _quoted(value) if isinstance(value, str) else value


def _quoted(text: str) -> str:
    """Return an address in quotes: a YAML 1.1 reader takes one without for a number."""
    return DoubleQuotedScalarString(text) if ":" in text else text


class _Apart(Value):
    """A comment line or empty line, and the keys that follow it in the text, each by its path."""

    line: str
    followed_by: tuple[_Path, ...]


def _without_comments(text: str) -> tuple[str, tuple[_Apart, ...]]:
    """Return the text without its comment lines and empty lines, and these.

    ruamel.yaml keeps such lines with the key before them, and loses them with it; so it is not given them.
    """
    keys, inside = _places(text)
    kept: list[str] = []
    apart: list[_Apart] = []
    for number, line in enumerate(_lines(text)):
        if number in inside or (line.strip() and not _is_comment(line)):
            kept.append(line)
        else:
            followed_by = tuple(path for path, at in keys.items() if at > number) if kept else (_TOP,)
            apart.append(_Apart(line, followed_by))
    return "".join(f"{line}\n" for line in kept), tuple(apart)


def _with_comments(text: str, apart: tuple[_Apart, ...]) -> str:
    """Return the text with its comment lines and empty lines again, each before the first key after it that is left."""
    places, inside = _places(text)
    keys, lines = {_TOP: 0, **places}, _lines(text)
    before: dict[int, list[str]] = {}
    for one in apart:
        at = next((keys[path] for path in one.followed_by if path in keys), len(lines))
        before.setdefault(at, []).append(_outdented(one.line, lines[at : at + 1]) if at - 1 in inside else one.line)
    woven = [part for number, line in enumerate(lines) for part in (*before.get(number, ()), line)]
    return "".join(f"{line}\n" for line in (*woven, *before.get(len(lines), ())))


def _outdented(line: str, following: list[str]) -> str:
    """Return a comment that comes to stand below a block of text, no deeper than what follows: it is not the text's."""
    deepest = min(len(one) - len(one.lstrip()) for one in (line, *(following or [""])))
    return f"{' ' * deepest}{line.lstrip()}"


def _places(text: str) -> tuple[dict[_Path, int], frozenset[int]]:
    """Return the line of each key, in the text's order, and the lines that begin inside of a text value."""
    keys: dict[_Path, int] = {}
    inside: set[int] = set()
    lines = _lines(text)

    def walk(node: Any, path: _Path) -> None:
        if isinstance(node, ScalarNode):
            first, end = node.start_mark.line + 1, node.end_mark.line + 1
            inside.update(_of_block(lines, first, end) if node.style in ("|", ">") else range(first, end))
        for key, value in node.value if isinstance(node, MappingNode) else ():
            keys[(*path, str(key.value))] = key.start_mark.line
            walk(key, path)
            walk(value, (*path, str(key.value)))

    walk(YAML(typ="rt").compose(text), ())
    return keys, frozenset(inside)


def _of_block(lines: list[str], first: int, end: int) -> range:
    """Return the lines of a text written with `|` or `>`: the comments below it are not its own."""
    indented = next((len(line) - len(line.lstrip()) for line in lines[first:end] if line.strip()), 0)
    after = (at for at in range(first, min(end, len(lines))) if lines[at].strip() and lines[at][:indented].strip())
    return range(first, next(after, end))


def _lines(text: str) -> list[str]:
    """Return the lines as YAML counts them; str.splitlines knows more ends of lines."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _comments(text: str) -> Counter[str]:
    """Return the lines that are only a comment, and how often each is there."""
    inside = _places(text)[1]
    lines = enumerate(_lines(text))
    return Counter(line.strip() for number, line in lines if _is_comment(line) and number not in inside)


def refuse_lost_comments(was: str, text: str, name: str) -> None:
    """Refuse a new text that lacks a comment line of the old one.

    Raises:
        InvalidInput: naming the first that would be lost.
    """
    lost = sorted(_comments(was) - _comments(text))
    if lost:
        raise _by_hand(f"the comment '{lost[0]}' would be lost", name)


def _checked(text: str, was: str | None, place: _Place, changes: Mapping[str, object], name: str) -> str:
    """Read the new text as every host.yaml is read, and see that it says what was meant, and all it said before."""
    host = parse_host_spec(text, name)
    if not place.says(host, changes):
        wanted = ", ".join(f"{key}: {value}" for key, value in changes.items())
        raise _by_hand(f"it would not say '{wanted}' for {place.key} afterwards", name)
    if was is None:
        return text
    before = parse_host_spec(was, name)
    others = [{key: said for key, said in place.all(one).items() if key != place.key} for one in (before, host)]
    rest = [replace(one, **{place.section: NOTHING}) for one in (before, host)]
    if others[0] != others[1] or rest[0] != rest[1]:
        raise _by_hand(f"something else than {place.key} would change too", name)
    refuse_lost_comments(was, text, name)
    return text


def _by_hand(why: str, name: str) -> InvalidInput:
    return InvalidInput(
        f"{name} cannot be changed by a program: {why}", hint="write it by hand, one key on a line", path=name
    )


def _writer(text: str) -> YAML:
    """Return a writer that keeps quotes and does not fold lines; it indents as the text does."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDEST
    yaml.explicit_start = text.lstrip().startswith("---")
    nested = next((line for line in _lines(text) if line.startswith(" ") and line.strip()[:1] not in "#"), "  ")
    yaml.indent(mapping=len(nested) - len(nested.lstrip()), sequence=4, offset=2)
    return yaml
