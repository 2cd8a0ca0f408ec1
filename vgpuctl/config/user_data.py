# SPDX-License-Identifier: Apache-2.0
"""The user-data of cloud-init, checked before a VM gets it: text that cloud-init would ignore is refused.

cloud-init recognizes the format of user-data by the first line (cloudinit/handlers/__init__.py, INCLUSION_TYPES_MAP) or
by a MIME header, and only warns in the guest's log about anything else. For cloud-config the YAML is parsed too. Its
keys are not checked: what they mean depends on the guest's cloud-init. No message quotes the text, because it may hold
secrets.
"""

from __future__ import annotations

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from vgpuctl.config.yaml_reader import LocatedProblem, problems_error
from vgpuctl.errors import InvalidInput
from vgpuctl.model.request import CloudInitFile
from vgpuctl.model.yaml_text import YamlError, compose_yaml

MAX_USER_DATA_BYTES = 1 << 20
CLOUD_CONFIG = "#cloud-config"
_ARCHIVE = "#cloud-config-archive"
_JINJA = "## template: jinja"
_INCLUDES = ("#include", "#include-once")
_HEADERS = (CLOUD_CONFIG, _ARCHIVE, "#cloud-config-jsonp", "#cloud-boothook", *_INCLUDES, "#part-handler")
_MIME = ("mime-version:", "content-type: multipart/")


def parse_user_data(text: str, path: str) -> CloudInitFile:
    """Return user-data that cloud-init understands; `path` is its file, for messages.

    Raises:
        InvalidInput: the first problem, as `file:line:column: what is wrong`.
    """
    check_text(text, path)
    if text.startswith("\ufeff"):
        raise _problem_error(path, 1, "it begins with a byte order mark, after which cloud-init finds no header")
    lines = [line.rstrip() for line in text.split("\n")]
    if lines[0].lower().startswith(_MIME):
        return CloudInitFile(path, text)
    jinja = lines[0] == _JINJA
    header_line = lines[1] if jinja and len(lines) > 1 else lines[0]
    word, _, rest = header_line.partition(" ")
    if not header_line.startswith("#!") and word not in _HEADERS:
        allowed = ", ".join((*_HEADERS, "#!", f"'{_JINJA}'"))
        where = "its second line" if jinja else "its first line"
        raise _problem_error(path, 1 + jinja, f"cloud-init would ignore it: {where} must begin with one of {allowed}")
    has_url_in_header = bool(rest) and word in _INCLUDES
    if not jinja and word in (CLOUD_CONFIG, _ARCHIVE):  # a Jinja template becomes YAML only in the guest
        check_yaml(text, path, SequenceNode if word == _ARCHIVE else MappingNode)
    elif not any(lines[1 + jinja :]) and not has_url_in_header:
        raise _problem_error(path, 1, "nothing follows its header")
    return CloudInitFile(path, text)


def check_text(text: str, path: str) -> None:
    """Refuse a text that is too large, or is none."""
    if len(text.encode()) > MAX_USER_DATA_BYTES:
        raise _problem_error(path, 1, f"it is larger than {MAX_USER_DATA_BYTES >> 10} KiB")
    if "\0" in text:
        raise _problem_error(path, text[: text.index("\0")].count("\n") + 1, "it is not text: it contains a NUL byte")


def node_error(path: str, node: Node, text: str) -> InvalidInput:
    """Return the error for a place in a text."""
    return problems_error(path, [LocatedProblem(node.start_mark.line + 1, node.start_mark.column + 1, "", text)])


def check_yaml(text: str, path: str, expected: type[MappingNode] | type[SequenceNode]) -> Node:
    """Return a text's YAML, which must be of the expected kind.

    The parser's own error quotes the text. So ours is raised outside `except`, where it gets no `__context__`.
    """
    kind = "a mapping (key: value)" if expected is MappingNode else "a list of parts"
    problem: InvalidInput | None = None
    try:
        node = compose_yaml(text)
    except YamlError as exc:
        problem = problems_error(
            path, [LocatedProblem(exc.line, exc.column, "", "it is not YAML: the structure ends here")]
        )
    if problem is not None:
        raise problem
    if node is None or (isinstance(node, ScalarNode) and not node.value):
        raise _problem_error(path, 1, f"nothing follows its first line; expected {kind}")
    if not isinstance(node, expected):
        raise node_error(path, node, f"expected {kind}")
    return node


def _problem_error(path: str, line: int, text: str) -> InvalidInput:
    return problems_error(path, [LocatedProblem(line, 1, "", text)])
