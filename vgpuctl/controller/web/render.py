# SPDX-License-Identifier: Apache-2.0
"""Fills in the templates in `templates/web`. All text is escaped; what would change the order of text is shown."""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from vgpuctl.controller.web.parts import POOL_COLORS, PageView, Section, Visitor
from vgpuctl.domain.text_templates import read_template
from vgpuctl.version import __version__

if TYPE_CHECKING:
    import jinja2

STATIC = Path(__file__).resolve().parent / "static"
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
DIGEST_CHARACTERS = 16
MOST_CHARACTERS = 20_000
"""So much of one text is shown."""
_SHOWN = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
"""Categories of characters that no name needs: controls, right-to-left marks, joiners, tags, line separators."""
SUMMARY = "summary"
"""Is replaced like a section."""
NAV = (
    ("fleet", "Fleet", "/"),
    ("pools", "Pools", "/pools"),
    ("desktops", "Desktops", "/desktops"),
    ("hosts", "Hosts", "/hosts"),
    ("images", "Images", "/images"),
    ("capacity", "Capacity", "/capacity"),
    ("progress", "In progress", "/progress"),
    ("use", "Use", "/use"),
    ("people", "People", "/people"),
    ("rights", "Rights", "/rights"),
    ("tokens", "Tokens", "/tokens"),
    ("journal", "Journal", "/journal"),
    ("my", "My desktops", "/my"),
)


def harmless(value: object) -> object:
    """Return a text in which characters that nobody sees, or that reorder others, are shown by their number."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    cut = value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(f"‹U+{ord(c):04X}›" if unicodedata.category(c) in _SHOWN and c not in "\n\t" else c for c in cut)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: read_template("web", name)),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(static=static_url, colors=range(POOL_COLORS), version=__version__)
    return environment


def render_section(section: Section) -> str:
    """Return a section with its digest, by which a browser knows whether it has this one."""
    values: dict[str, Any] = {"section": section, "view": section.view}
    inner = _environment().get_template(f"{section.template}.html").render(values)
    return _environment().get_template("section.html").render(values | {"inner": inner, "digest": digest_of(inner)})


def render_summary(page: PageView) -> str:
    """Return the line below a page's title, with its digest."""
    return _environment().get_template("summary.html").render(text=page.summary, digest=digest_of(page.summary))


def section_digests(page: PageView) -> dict[str, str]:
    """Return the digest of each section by its name, and of the line below the title."""
    template = _environment().get_template
    parts = {
        one.name: digest_of(template(f"{one.template}.html").render(section=one, view=one.view))
        for one in page.sections
    }
    return {SUMMARY: digest_of(page.summary), **parts}


def render_page(page: PageView, visitor: Visitor, stream: str | None) -> str:
    """Return a page. `stream`: the URL of what tells it of changes."""
    sections = [render_section(one) for one in page.sections]
    values = {"page": page, "sections": sections, "summary": render_summary(page), "visitor": visitor, "stream": stream}
    return _environment().get_template("page.html").render(values)


def render_error(title: str, text: str, hint: str | None, visitor: Visitor) -> str:
    """Return a page that says what failed."""
    template = _environment().get_template("error.html")
    return template.render(title=title, text=text, hint=hint, visitor=visitor, stream=None)


def render_sign_in(name: str, path: str, problem: str | None, issuer: str | None = None) -> str:
    """Return the page on which people sign in. `name`: as it was typed; `path`: where they go then.

    `issuer`: where they can sign in, too.
    """
    template = _environment().get_template("sign_in.html")
    oidc = None if issuer is None else f"/sign-in/oidc?{urlencode({'path': path})}"
    return template.render(
        name=name, path=path, problem=problem, issuer=issuer, oidc=oidc, visitor=Visitor(), stream=None
    )


def digest_of(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGEST_CHARACTERS]


@functools.cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return the digest and the bytes of each file that browsers may keep, by its path.

    The files of a directory have one digest: the modules in it name each other by relative paths.
    """
    files: dict[str, tuple[str, bytes]] = {}
    for one in sorted(STATIC.iterdir()):
        paths = [one] if one.is_file() else sorted(path for path in one.rglob("*") if path.is_file())
        parts = {
            path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths if path.suffix in STATIC_TYPES
        }
        digest = hashlib.sha256(b"".join(parts.values())).hexdigest()[:DIGEST_CHARACTERS]
        files |= {name: (digest, data) for name, data in parts.items()}
    return files


def static_url(name: str) -> str:
    """Return where a file is; another content has another URL."""
    return f"/web/static/{static_files()[name][0]}/{name}"
