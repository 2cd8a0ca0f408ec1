# SPDX-License-Identifier: Apache-2.0
"""Write a whole host.yaml, as export and import print it; what is written reads back as the same."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from vgpuctl.spec.host import BootSpec, HostSpec, as_written, parse_host_spec
from vgpuctl.value import NOTHING, Value, field_names


def host_text(host: HostSpec, remarks: Mapping[str, str] = NOTHING, head: tuple[str, ...] = ()) -> str:
    """Return the text of a host.yaml. `remarks`: a comment for entries of `gpus:`; `head`: comments above it all."""
    document = CommentedMap(version=host.version)
    for section in ("defaults", "placement", "boot"):
        said = _entry(getattr(host, section))
        if said and getattr(host, section) != BootSpec():
            document[section] = said
    if host.gpus:
        document["gpus"] = entries = CommentedMap()
        for key, entry in host.gpus.items():
            entries[_quoted(key)] = _entry(entry)
            if key in remarks:
                entries.yaml_set_comment_before_after_key(key, before=_comment(remarks[key]), indent=2)
    if host.vgpus:
        document["vgpus"] = CommentedMap({name: _entry(entry) for name, entry in host.vgpus.items()})
    yaml = YAML(typ="rt")
    yaml.width = 4096
    written = io.StringIO()
    yaml.dump(document, written)
    text = "".join(f"# {_comment(line)}\n" for line in head) + written.getvalue()
    if parse_host_spec(text, "what was to be written") != host:
        raise AssertionError("a host.yaml was written that says something else")
    return text


def _comment(text: str) -> str:
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _entry(entry: Value) -> CommentedMap:
    return CommentedMap(
        {key: _yaml(value) for key in field_names(entry) if (value := as_written(getattr(entry, key))) is not None}
    )


def _yaml(value: Any) -> Any:
    if isinstance(value, Mapping):
        return CommentedMap({key: _yaml(one) for key, one in value.items()})
    if isinstance(value, list):
        listed = CommentedSeq([_yaml(one) for one in value])
        listed.fa.set_flow_style()
        return listed
    return _quoted(value) if isinstance(value, str) else value


def _quoted(text: str) -> str:
    """Return an address in quotes: a YAML 1.1 reader takes one without for a number."""
    return DoubleQuotedScalarString(text) if ":" in text else text
