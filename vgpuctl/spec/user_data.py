# SPDX-License-Identifier: Apache-2.0
"""The user-data of cloud-init, checked before it is given to a VM: what cloud-init would pass over is refused.

cloud-init tells the kinds apart by how the text begins (cloudinit/handlers/__init__.py, INCLUSION_TYPES_MAP) or by a
MIME header, and only warns in the guest's log about anything else. Of cloud-config the YAML is read too; what a
module makes of its keys only the guest's cloud-init knows. No message quotes the text: it holds secrets.
"""

from __future__ import annotations

from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from vgpuctl.errors import InvalidInput
from vgpuctl.model.wish import UserData
from vgpuctl.model.yaml_text import NotYaml, compose
from vgpuctl.spec.read import Found, refusal

MOST_BYTES = 1 << 20
CLOUD_CONFIG = "#cloud-config"
_ARCHIVE = "#cloud-config-archive"
_JINJA = "## template: jinja"
_INCLUDES = ("#include", "#include-once")
_WORDS = (CLOUD_CONFIG, _ARCHIVE, "#cloud-config-jsonp", "#cloud-boothook", *_INCLUDES, "#part-handler")
_MIME = ("mime-version:", "content-type: multipart/")


def checked(text: str, path: str) -> UserData:
    """Return user-data that cloud-init understands; `path` is its file, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: what is wrong`.
    """
    if len(text.encode()) > MOST_BYTES:
        raise _refused(path, 1, f"it is larger than {MOST_BYTES >> 10} KiB")
    if "\0" in text:
        raise _refused(path, text[: text.index("\0")].count("\n") + 1, "it is not text: it holds a NUL byte")
    if text.startswith("\ufeff"):
        raise _refused(path, 1, "it begins with a byte order mark, behind which cloud-init finds no header")
    lines = [line.rstrip() for line in text.split("\n")]
    if lines[0].lower().startswith(_MIME):
        return UserData(path, text)
    jinja = lines[0] == _JINJA
    header = lines[1] if jinja and len(lines) > 1 else lines[0]
    word, _, rest = header.partition(" ")
    if not header.startswith("#!") and word not in _WORDS:
        words = ", ".join((*_WORDS, "#!", f"'{_JINJA}'"))
        where = "its second line" if jinja else "its first line"
        raise _refused(path, 1 + jinja, f"cloud-init would ignore it: {where} must begin with one of {words}")
    if not jinja and word in (CLOUD_CONFIG, _ARCHIVE):
        _check_yaml(text, path, SequenceNode if word == _ARCHIVE else MappingNode)
    elif not any(lines[1 + jinja :]) and not (rest and word in _INCLUDES):
        raise _refused(path, 1, "nothing follows its header")
    return UserData(path, text)


def _check_yaml(text: str, path: str, due: type[MappingNode] | type[SequenceNode]) -> None:
    """See that it is YAML and holds what is due; the reader's own error quotes the text, so it is not kept."""
    kind = "a mapping (key: value)" if due is MappingNode else "a list of parts"
    problem: InvalidInput | None = None
    try:
        node = compose(text)
    except NotYaml as exc:
        problem = refusal(path, [Found(exc.line, exc.column, "", "it is not YAML: the structure breaks off here")])
    if problem is not None:
        raise problem
    if node is None or (isinstance(node, ScalarNode) and not node.value):
        raise _refused(path, 1, f"nothing follows its first line; {kind} is due")
    if not isinstance(node, due):
        raise refusal(path, [Found(node.start_mark.line + 1, node.start_mark.column + 1, "", f"{kind} is due here")])


def _refused(path: str, line: int, text: str) -> InvalidInput:
    return refusal(path, [Found(line, 1, "", text)])
