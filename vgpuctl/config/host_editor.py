# SPDX-License-Identifier: Apache-2.0
"""Change a GPU, a vGPU or agent: in the text of host.yaml, where comments, order and quotes stay; or write a whole one.

The same parser that reads every host.yaml checks the result before it is returned, so vgpuctl never writes a file that
it would refuse itself. `export` and `import` print whole ones.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from vgpuctl.config.agent_spec import dump_agent
from vgpuctl.config.host_assignments import AgentAssignment
from vgpuctl.config.host_spec import FORMAT_VERSION, BootSpec, HostSpec, dump_keys, dump_value, parse_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import normalize_pci
from vgpuctl.value import EMPTY_MAPPING, Value, field_names, replace

_LINE_WIDTH = 4096
_KeyPath = tuple[str, ...]
_TOP: _KeyPath = ()
"""The path of the text's first line: comments above it stay above it, also when that line is `---`."""


def edit_gpu(text: str | None, address: str, changes: Mapping[str, object], path: str) -> str:
    """Return host.yaml with some keys of one GPU (or model, or `all`) set, or removed where the new value is None.

    `text` None: there is no file yet. A GPU with no settings left is removed. `path` is the file's path, for messages.
    A change that alters nothing returns the text as it was. Every line that is only a comment stays before the key that
    follows it; if that key is removed, before the next one.

    Raises:
        InvalidInput: the text, or the result, is no valid host.yaml; or a comment would be lost.
    """
    return _edit_entry(text, _EntryName("gpus", address), changes, path)


def edit_vgpu(text: str | None, vgpu_name: str, changes: Mapping[str, object], path: str) -> str:
    """Return host.yaml with the keys of one entry of `vgpus:` set or removed; otherwise like `edit_gpu`.

    Raises:
        InvalidInput: as `edit_gpu`.
    """
    return _edit_entry(text, _EntryName("vgpus", vgpu_name), changes, path)


def edit_agent(text: str | None, assignments: Sequence[AgentAssignment], path: str) -> str:
    """Return host.yaml with keys of the section `agent:` set or removed; otherwise like `edit_gpu`.

    Raises:
        InvalidInput: as `edit_gpu`.
    """
    before = parse_host_spec(text, path) if text else HostSpec(FORMAT_VERSION)
    bare_text, comments = _split_comments(text) if text else ("", ())
    yaml = _make_writer(bare_text)
    document = yaml.load(bare_text) or CommentedMap(version=FORMAT_VERSION)
    for assignment in assignments:
        _set_path(document, ("agent", *assignment.path), assignment.value)
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    new_text = _merge_comments(buffer.getvalue(), comments)
    host = parse_host_spec(new_text, path)
    if host == before:
        return text or ""
    if replace(host, agent=before.agent) != before:
        raise _manual_edit_error("more than agent would change", path)
    refuse_lost_comments(text or "", new_text, path)
    return new_text


def _set_path(mapping: Any, path: tuple[str, ...], value: object) -> None:
    """Set or remove one value; a mapping that is empty then goes, too."""
    first, *rest = path
    if not rest:
        _set_keys(mapping, {first: value})
        return
    if not isinstance(mapping.get(first), Mapping):
        mapping[first] = CommentedMap()
    _set_path(mapping[first], tuple(rest), value)
    if not mapping[first]:
        del mapping[first]


class _EntryName(Value):
    """An entry of host.yaml: `section` is "gpus" or "vgpus", `key` an address in the kernel's spelling, or a name."""

    section: str
    key: str

    def find_entry(self, host: HostSpec) -> Value | None:
        """Return the entry in a host.yaml, None if it does not exist."""
        return self.all_entries(host).get(self.key)

    def all_entries(self, host: HostSpec) -> Mapping[str, Value]:
        """Return every entry of the section."""
        entries: Mapping[str, Value] = getattr(host, self.section)
        return entries

    def has_values(self, host: HostSpec, changes: Mapping[str, object]) -> bool:
        """Return whether the entry already has these values."""
        current = dump_keys(self.find_entry(host), changes)
        return all(current[key] == dump_value(value) for key, value in changes.items())


def _edit_entry(text: str | None, entry_name: _EntryName, changes: Mapping[str, object], path: str) -> str:
    if text is None:
        return _check_edited(_edit_text(None, entry_name, changes), None, entry_name, changes, path)
    if entry_name.has_values(parse_host_spec(text, path), changes):
        return text
    text_without_comments, comments = _split_comments(text)
    return _check_edited(
        _merge_comments(_edit_text(text_without_comments, entry_name, changes), comments),
        text,
        entry_name,
        changes,
        path,
    )


def _edit_text(text: str | None, entry_name: _EntryName, changes: Mapping[str, object]) -> str:
    """Return the text with the keys set and removed; the text has no lines that are only a comment."""
    yaml = _make_writer(text or "")
    document = yaml.load(text) if text else None
    if document is None:
        document = CommentedMap(version=FORMAT_VERSION)
    entries = document.get(entry_name.section)
    if entries is None:
        entries = document[entry_name.section] = CommentedMap()
    existing_key = next((key for key in entries if entry_name.key in (str(key), normalize_pci(str(key)))), None)
    entry = entries.get(existing_key) if existing_key is not None else None
    if entry is None:
        existing_key = _quote_address(entry_name.key) if existing_key is None else existing_key
        entry = entries[existing_key] = CommentedMap()
    _set_keys(entry, changes)
    if not entry:
        del entries[existing_key]
    if not entries:
        del document[entry_name.section]
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    return buffer.getvalue()


def _set_keys(entry: Any, changes: Mapping[str, object]) -> None:
    for key, value in changes.items():
        if value is None:
            entry.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(entry.get(key), Mapping):
            _set_keys(entry[key], {**dict.fromkeys(entry[key]), **value})
        elif isinstance(value, Mapping):
            entry[key] = CommentedMap(value)
        elif isinstance(value, list | tuple):
            entry[key] = CommentedSeq(value)
            entry[key].fa.set_flow_style()
        else:
            entry[key] = _quote_address(value) if isinstance(value, str) else value


def _quote_address(text: str) -> str:
    """Return an address in quotes: a YAML 1.1 reader reads an unquoted one as a number."""
    return DoubleQuotedScalarString(text) if ":" in text else text


class _CommentLine(Value):
    """A comment line or empty line, and the paths of the keys that follow it in the text."""

    line: str
    followed_by: tuple[_KeyPath, ...]


def _split_comments(text: str) -> tuple[str, tuple[_CommentLine, ...]]:
    """Return the text without its comment lines and empty lines, and those lines.

    ruamel.yaml attaches such lines to the key before them and loses them with that key, so it never sees them.
    """
    key_lines, text_lines = _locate_keys(text)
    content_lines: list[str] = []
    comments: list[_CommentLine] = []
    for number, line in enumerate(_split_lines(text)):
        if number in text_lines or (line.strip() and not _is_comment(line)):
            content_lines.append(line)
        else:
            followed_by = (
                tuple(path for path, key_line in key_lines.items() if key_line > number) if content_lines else (_TOP,)
            )
            comments.append(_CommentLine(line, followed_by))
    return "".join(f"{line}\n" for line in content_lines), tuple(comments)


def _merge_comments(text: str, comments: tuple[_CommentLine, ...]) -> str:
    """Insert the comment lines and empty lines again, each before the first remaining key that followed it."""
    key_lines, text_lines = _locate_keys(text)
    line_by_path, lines = {_TOP: 0, **key_lines}, _split_lines(text)
    before: dict[int, list[str]] = {}
    for comment in comments:
        target = next((line_by_path[path] for path in comment.followed_by if path in line_by_path), len(lines))
        before.setdefault(target, []).append(
            _outdent_comment(comment.line, lines[target : target + 1]) if target - 1 in text_lines else comment.line
        )
    merged = [part for number, line in enumerate(lines) for part in (*before.get(number, ()), line)]
    return "".join(f"{line}\n" for line in (*merged, *before.get(len(lines), ())))


def _outdent_comment(line: str, following: list[str]) -> str:
    """Return a comment that follows a block scalar, indented no deeper than the next line, so it stays a comment."""
    indent = min(len(text) - len(text.lstrip()) for text in (line, *(following or [""])))
    return f"{' ' * indent}{line.lstrip()}"


def _locate_keys(text: str) -> tuple[dict[_KeyPath, int], frozenset[int]]:
    """Return the line of each key, in the text's order, and the lines that begin inside a text value."""
    keys: dict[_KeyPath, int] = {}
    text_lines: set[int] = set()
    lines = _split_lines(text)

    def walk(node: Any, path: _KeyPath) -> None:
        if isinstance(node, ScalarNode):
            first, end = node.start_mark.line + 1, node.end_mark.line + 1
            text_lines.update(_block_lines(lines, first, end) if node.style in ("|", ">") else range(first, end))
        for key, value in node.value if isinstance(node, MappingNode) else ():
            keys[(*path, str(key.value))] = key.start_mark.line
            walk(key, path)
            walk(value, (*path, str(key.value)))

    walk(YAML(typ="rt").compose(text), ())
    return keys, frozenset(text_lines)


def _block_lines(lines: list[str], first: int, end: int) -> range:
    """Return the lines of a block scalar (`|` or `>`); comments below it do not belong to it."""
    indented = next((len(line) - len(line.lstrip()) for line in lines[first:end] if line.strip()), 0)
    after = (
        number
        for number in range(first, min(end, len(lines)))
        if lines[number].strip() and lines[number][:indented].strip()
    )
    return range(first, next(after, end))


def _split_lines(text: str) -> list[str]:
    """Return the lines as YAML counts them; str.splitlines recognizes more line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _count_comments(text: str) -> Counter[str]:
    """Count the lines that are only a comment."""
    text_lines = _locate_keys(text)[1]
    lines = enumerate(_split_lines(text))
    return Counter(line.strip() for number, line in lines if _is_comment(line) and number not in text_lines)


def refuse_lost_comments(old_text: str, new_text: str, path: str) -> None:
    """Refuse a new text that lacks a comment line of the old one.

    Raises:
        InvalidInput: with the first comment that would be lost.
    """
    lost = sorted(_count_comments(old_text) - _count_comments(new_text))
    if lost:
        raise _manual_edit_error(f"the comment '{lost[0]}' would be lost", path)


def _check_edited(
    text: str, old_text: str | None, entry_name: _EntryName, changes: Mapping[str, object], path: str
) -> str:
    """Parse the new text like any host.yaml; check that it has the requested values and keeps everything else."""
    host = parse_host_spec(text, path)
    if not entry_name.has_values(host, changes):
        requested = ", ".join(f"{key}: {value}" for key, value in changes.items())
        raise _manual_edit_error(f"the result would not have '{requested}' for {entry_name.key} afterwards", path)
    if old_text is None:
        return text
    before = parse_host_spec(old_text, path)
    other_entries = [
        {key: entry for key, entry in entry_name.all_entries(spec).items() if key != entry_name.key}
        for spec in (before, host)
    ]
    other_sections = [replace(spec, **{entry_name.section: EMPTY_MAPPING}) for spec in (before, host)]
    if other_entries[0] != other_entries[1] or other_sections[0] != other_sections[1]:
        raise _manual_edit_error(f"more than {entry_name.key} would change", path)
    refuse_lost_comments(old_text, text, path)
    return text


def _manual_edit_error(reason: str, path: str) -> InvalidInput:
    return InvalidInput(
        f"{path} cannot be edited automatically: {reason}", hint="edit it by hand, one key per line", path=path
    )


def _make_writer(text: str) -> YAML:
    """Return a writer that keeps quotes, does not fold lines, and indents as the text does."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _LINE_WIDTH
    yaml.explicit_start = text.lstrip().startswith("---")
    nested = next((line for line in _split_lines(text) if line.startswith(" ") and line.strip()[:1] not in "#"), "  ")
    yaml.indent(mapping=len(nested) - len(nested.lstrip()), sequence=4, offset=2)
    return yaml


def render_host_file(
    host: HostSpec, gpu_comments: Mapping[str, str] = EMPTY_MAPPING, header_comments: tuple[str, ...] = ()
) -> str:
    """Return the text of a host.yaml.

    `gpu_comments`: for entries of `gpus:`; `header_comments`: at the top of the file.
    """
    document = CommentedMap(version=host.version)
    for section in ("defaults", "placement", "boot"):
        values = _render_entry(getattr(host, section))
        if values and getattr(host, section) != BootSpec():
            document[section] = values
    agent = dump_agent(host.agent)
    if agent:
        document["agent"] = _render_value(agent)
    if host.gpus:
        document["gpus"] = entries = CommentedMap()
        for key, entry in host.gpus.items():
            entries[_quote_address(key)] = _render_entry(entry)
            if key in gpu_comments:
                entries.yaml_set_comment_before_after_key(key, before=_clean_comment(gpu_comments[key]), indent=2)
    if host.vgpus:
        document["vgpus"] = CommentedMap({name: _render_entry(entry) for name, entry in host.vgpus.items()})
    yaml = YAML(typ="rt")
    yaml.width = 4096
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    text = "".join(f"# {_clean_comment(line)}\n" for line in header_comments) + buffer.getvalue()
    if parse_host_spec(text, "the intended text") != host:
        raise AssertionError("the host.yaml that was written has another meaning")
    return text


def _clean_comment(text: str) -> str:
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _render_entry(entry: Value) -> CommentedMap:
    return CommentedMap(
        {
            key: _render_value(value)
            for key in field_names(entry)
            if (value := dump_value(getattr(entry, key))) is not None
        }
    )


def _render_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return CommentedMap({key: _render_value(item) for key, item in value.items()})
    if isinstance(value, list):
        sequence = CommentedSeq([_render_value(item) for item in value])
        sequence.fa.set_flow_style()
        return sequence
    return _quote_address(value) if isinstance(value, str) else value
