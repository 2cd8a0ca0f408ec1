# SPDX-License-Identifier: Apache-2.0
"""Write a whole host.yaml, as export and import print it; vgpuctl reads the written text back as the same content."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from vgpuctl.config.host_spec import BootSpec, HostSpec, dump_value, parse_host_spec
from vgpuctl.value import EMPTY_MAPPING, Value, field_names


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
    if parse_host_spec(text, "what was to be written") != host:
        raise AssertionError("a host.yaml was written that says something else")
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


def _quote_address(text: str) -> str:
    """Return an address in quotes: a YAML 1.1 reader reads an unquoted one as a number."""
    return DoubleQuotedScalarString(text) if ":" in text else text
