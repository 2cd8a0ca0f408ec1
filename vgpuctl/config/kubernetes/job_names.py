# SPDX-License-Identifier: Apache-2.0
"""What `--job` takes: the name of an object, or of one of its roles; with its kind and namespace where these differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vgpuctl.config.kubernetes.pods import PodTemplate
from vgpuctl.errors import InvalidInput, NotFound

_MOST_NAMES = 20


def choose_job(templates: Sequence[PodTemplate], wanted: str) -> list[PodTemplate]:
    """Return the templates of the only object of this name, or of one of its roles.

    Where one role has the name of its object, that one is meant.

    Raises:
        NotFound: there is none.
        InvalidInput: several have it.
    """
    chosen = _with_spelling(templates, wanted.lower())
    objects = list(dict.fromkeys((t.kind, t.namespace, t.name) for t in chosen))
    if not objects:
        names = sorted({template.name for template in templates})
        there = ", ".join(names[:_MOST_NAMES]) or "none"
        raise NotFound(f"no object with pods has the name {wanted}", hint=f"there are: {there}")
    if len(objects) > 1:
        options = dict.fromkeys(f"--job {name_of_job(template, templates)}" for template in chosen)
        raise InvalidInput(
            f"{len(objects)} objects have the name {wanted}: " + ", ".join(f"{t.kind} ({t.at})" for t in chosen[:10]),
            hint="say which: " + ", ".join(list(options)[:_MOST_NAMES]),
        )
    return chosen


def name_of_job(template: PodTemplate, templates: Sequence[PodTemplate]) -> str:
    """Return the shortest text with which `choose_job` returns this template alone, if there is one."""
    own = list(_with_kind(template, template.stem))
    return next((text for text in own if len(_with_spelling(templates, text.lower())) == 1), own[-1])


def _with_kind(template: PodTemplate, name: str) -> Iterator[str]:
    kind = template.kind.lower()
    yield from (name, f"{kind}/{name}", f"{template.namespace}/{kind}/{name}")


def _with_spelling(templates: Sequence[PodTemplate], text: str) -> list[PodTemplate]:
    """Return the templates of which a text in lower case is a name with their role, else those of its object."""
    exact = [one for one in templates if text in map(str.lower, _with_kind(one, one.stem))]
    return exact or [one for one in templates if text in map(str.lower, _with_kind(one, one.name))]
