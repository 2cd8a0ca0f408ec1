# SPDX-License-Identifier: Apache-2.0
"""The package's templates, and how those that are no XML are filled in: YAML for monitoring, scripts for guests.

The delimiters of those are brackets, because braces are Prometheus' and the shell's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
TEMPLATE_DIRECTORIES = (_PACKAGE / "_templates", _PACKAGE.parent / "templates")
"""Of a wheel, and of a source tree (also an editable install of it), where they are next to the package.

An admin's files in /etc/vgpuctl/templates are read through the host's port, not here.
"""


def read_template(directory: str, name: str) -> str:
    """Return the text of a template in a directory of the package's templates."""
    path = next(file for root in TEMPLATE_DIRECTORIES if (file := root / directory / name).is_file())
    return path.read_text(encoding="utf-8")


def render_text(directory: str, name: str, values: Mapping[str, object]) -> str:
    """Return a template filled in. It is escaped for nothing: the values are words, numbers and addresses, checked."""
    import jinja2  # with it reading commands would start later

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda included: read_template(directory, included)),
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(values)
