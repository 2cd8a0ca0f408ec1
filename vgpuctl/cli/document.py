# SPDX-License-Identifier: Apache-2.0
"""The text of a document for programs: JSON, or the same as YAML."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from vgpuctl.cli.streams import escape_invisible, supports_unicode
from vgpuctl.model.documents import to_json_value

_PLAIN_YAML = re.compile(r"[A-Za-z_/][\w./+@-]*(?: [\w./+@-]+)*", re.ASCII)
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


def text(document: Mapping[str, object], output: str = "json") -> str:
    """Return a document as the text to print: JSON, or the same as YAML."""
    if output == "yaml":
        return _yaml_text(to_json_value(document))
    is_ascii = not supports_unicode(sys.stdout)
    printed = json.dumps(to_json_value(document), indent=2, ensure_ascii=is_ascii, allow_nan=False)
    return f"{escape_invisible(printed)}\n"


def _yaml_text(value: object) -> str:
    """Return a value as YAML. Strings that a reader of YAML 1.1 takes for something else are quoted."""
    from ruamel import yaml

    class Representer(yaml.representer.SafeRepresenter):
        """Writes strings so that YAML 1.1 and 1.2 read the same."""

        def represent_str(self, data: str) -> Any:
            """Quote all but words and paths."""
            is_plain = _PLAIN_YAML.fullmatch(data) is not None and data.lower() not in _YAML_WORDS
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_plain else '"')

        def ignore_aliases(self, data: Any) -> bool:
            """Write a value as often as it occurs."""
            return True

    Representer.add_representer(str, Representer.represent_str)
    writer: Any = yaml.YAML(typ="safe", pure=True)  # its stubs know no type but None for allow_unicode
    writer.Representer = Representer
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = sys.maxsize
    stream = io.StringIO()
    shown = json.dumps(value, ensure_ascii=False, allow_nan=False)
    writer.allow_unicode = supports_unicode(sys.stdout) and escape_invisible(shown) == shown
    writer.dump(value, stream)
    return stream.getvalue()
