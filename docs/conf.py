# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings: `python3 tests/bootstrap.py docs` builds the site."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vgpuctl.cli.command import PROGRAM, Command, LazyGroup, cli  # noqa: E402
from vgpuctl.version import __version__  # noqa: E402

project = "vgpuctl"
copyright = "the vgpuctl authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.graphviz", "sphinx_click"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"vgpuctl {__version__}"
html_css_files = ["site.css"]
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # a -- in a help text is an option
graphviz_output_format = "svg"
myst_heading_anchors = 4
myst_fence_as_directive = ["graphviz"]
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]


def _commands(group: LazyGroup, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.help_texts:
        command = group.load(name)
        yield f"{path} {name}", command
        if isinstance(command, LazyGroup):
            yield from _commands(command, f"{path} {name}")


def _hide_shared_options() -> None:
    """Document the options of every command once, at the program itself."""
    for _, command in _commands(cli, PROGRAM):
        if isinstance(command, Command):
            command.params = [p for p in command.params if isinstance(p, click.Argument) or p in command.own_params]


def _add_examples(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Put a command's examples below its options."""
    del app
    examples = getattr(context.command, "examples", ())
    if examples:
        lines += ["", ".. code-block:: sh", ""]
        for line, purpose in examples:
            lines += [f"    # {purpose}", f"    {line}"]
        lines.append("")


def setup(app: Sphinx) -> None:
    """Connect what makes the command reference from the program."""
    _hide_shared_options()
    app.connect("sphinx-click-process-epilog", _add_examples)
