# SPDX-License-Identifier: Apache-2.0
"""User-data that cloud-init would ignore is refused, with its line and without its text."""

from __future__ import annotations

import traceback

import pytest

from vgpuctl.config.cloud_init_files import MAX_USER_DATA_BYTES, parse_user_data
from vgpuctl.errors import InvalidInput

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "#cloud-config\npassword: hunter2\n",
        "#cloud-config\r\npassword: hunter2\r\n",
        "#cloud-config\n# a note\n\nusers: [default, {name: &one ada}, {name: *one}]\n",
        "#cloud-config-archive\n- type: text/cloud-config\n  content: 'a: 1'\n",
        "#!/bin/sh\necho hunter2\n",
        "#include\nhttps://example.org/a\n",
        "#include https://example.org/a",
        "## template: jinja\n#cloud-config\n{% if x %}\na: 1\n{% endif %}\n",
        "#cloud-boothook\n#!/bin/sh\ntrue\n",
        "Content-Type: multipart/mixed; boundary=x\nMIME-Version: 1.0\n\n--x--\n",
    ],
)
def test_valid_user_data_is_not_changed(text):
    made = parse_user_data(text, "/ud")
    assert (made.text, made.path) == (text, "/ud")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "/ud:1:1: cloud-init would ignore it: its first line must begin with one of #cloud-config"),
        ("password: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("\n#cloud-config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        (" #cloud-config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("#cloud_config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("\ufeff#cloud-config\npassword: hunter2\n", "/ud:1:1: it begins with a byte order mark"),
        ("#cloud-config\n", "/ud:1:1: nothing follows its first line; expected a mapping"),
        ("#cloud-config\n# only a note\n", "/ud:1:1: nothing follows its first line; expected a mapping"),
        ("#cloud-config\n\n- hunter2\n", r"/ud:3:1: expected a mapping \(key: value\)"),
        ("#cloud-config\nhunter2\n", r"/ud:2:1: expected a mapping \(key: value\)"),
        ("#cloud-config more\n- hunter2\n", "/ud:2:1: expected a mapping"),
        ("#cloud-config\npassword: [hunter2\n", "/ud:3:1: it is not YAML"),
        ("#cloud-config\na: b\n\tpassword: hunter2\n", "/ud:3:1: it is not YAML"),
        ("#cloud-config\na: \x01hunter2\n", "/ud:2:4: it is not YAML"),
        ("#cloud-config-archive\na: hunter2\n", "/ud:2:1: expected a list of parts"),
        ("#!/bin/sh\n", "/ud:1:1: nothing follows its header"),
        ("#include\n\n", "/ud:1:1: nothing follows its header"),
        ("## template: jinja\na: hunter2\n", "/ud:2:1: cloud-init would ignore it: its second line"),
        ("## template: jinja", "/ud:2:1: cloud-init would ignore it: its second line"),
        ("#!/bin/sh\nhunter2\0\n", "/ud:2:1: it is not text: it contains a NUL byte"),
        ("#!/bin/sh\n" + "x" * MAX_USER_DATA_BYTES, "/ud:1:1: it is larger than 1024 KiB"),
    ],
)
def test_ignored_user_data_is_refused_by_line_and_never_quoted(text, message):
    with pytest.raises(InvalidInput, match=f"^{message}") as caught:
        parse_user_data(text, "/ud")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value.facts)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_repr_hides_the_text():
    assert SECRET not in repr(parse_user_data("#cloud-config\npassword: hunter2\n", "/ud"))
