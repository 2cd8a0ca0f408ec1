# SPDX-License-Identifier: Apache-2.0
"""Views and templates: hostile texts are shown and do nothing, and each state can be told without colours."""

from __future__ import annotations

from typing import Any

import pytest
from lxml import html

from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.controller.planning.phase import PhaseWord
from vgpuctl.controller.policy import FleetTarget
from vgpuctl.controller.web import (
    bars,
    cells,
    change_views,
    desktop_views,
    fleet_views,
    host_views,
    people_views,
    progress_views,
    render,
)
from vgpuctl.controller.web.answers import error_page
from vgpuctl.controller.web.changes import CHANGES, HOST, WebChange, buttons
from vgpuctl.controller.web.parts import PageView, Visitor
from vgpuctl.errors import Busy, NotFound
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.fleet import (
    DesktopResult,
    FleetEventResult,
    FleetGpuResult,
    FleetHostResult,
    FleetImageResult,
    FleetOverviewResult,
    GpuSliceResult,
    OverviewHostResult,
    OverviewPoolResult,
    PoolResult,
)
from vgpuctl.model.results.fleet_room import (
    FleetCapacityResult,
    FleetProgressResult,
    ImageCopyResult,
    PoolRoomResult,
    ProfileRoomResult,
)
from vgpuctl.model.results.people import ApiTokenResult, EntitlementResult, PersonResult, QuotaResult, UseResult
from vgpuctl.value import replace

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' autofocus onfocus='alert(1)", "{{ 7 * 7 }}",
    "javascript:alert(1)", "a\u202egnp.exe", "\u200f\u2066x\u2069", "\x00\x1b[31m", "n\ud800", "&lt;b&gt;", "x" * 200,
    "</title></style>--><svg/onload=alert(1)>", "%00%2f..%2f..", "\ue000\U000e0041", "\u2028line",
)  # fmt: skip


def slice_of(phase: str | None = "ready", mib: int | None = 4096, **more: Any) -> GpuSliceResult:
    values = {"desktop": "office-001", "pool": "office", "user": None, "profile": "A100-4C", "placement": None, **more}
    return GpuSliceResult(phase=phase, framebuffer_mib=mib, **values)


def gpu(*slices: GpuSliceResult, mib: int | None = 40960) -> FleetGpuResult:
    return FleetGpuResult("0000:3b:00.0", "NVIDIA A100", mib, sum(one.framebuffer_mib or 0 for one in slices), slices)


def every_page(text: str) -> dict[str, PageView]:
    """Return each page with a text wherever a person, a guest or another program can put one."""
    one = GpuSliceResult(text, text, text, text, text, 4096, 0)
    host = OverviewHostResult(text, text, text, text, True, 1, (FleetGpuResult(text, text, 40960, 4096, (one,)),))
    pool = OverviewPoolResult(text, text, text, text, text, (text,), 5, 2, {text: 1, "failed": 1})
    overview = FleetOverviewResult(1, 1, 40960, 4096, {text: 1}, (pool,), (host,), text)
    desktop = DesktopResult(
        text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, 1
    )
    shown = PoolResult(
        text, text, "paused", text, text, (text,), 5, 2, 1, 0, 1, {text: 1}, 1,
        {"vm": {text: text}, "schedules": [{"days": text, "from": text, "until": text, "spare": 3, "lead": text}]},
    )  # fmt: skip
    full = FleetHostResult(
        text, text, text, text, text, {text: text}, 1, text, text, text, text, text, text, 1, {text: 3}, 1, {text: text}
    )
    image = FleetImageResult(text, text, text, text, text, True, (text,), 1, text, text, 5, {text: text})
    event = FleetEventResult(1, text, text, text, text, text, text, text, text)
    query = {"pool": text, "user": text, "after": text, "kind": text, "person": text}
    person = PersonResult(text, text, (text,), True, True, text, text, 1)
    rights = (EntitlementResult(text, text, text, 1), EntitlementResult("everybody", text, None, 1))
    use = UseResult(text, 1.0, 1.0, None, 1.0, 0.5, 0.5, None, 900, 1, {text: 2})
    quota = QuotaResult(text, 1, None, 1024, text, 1)
    token = ApiTokenResult(text, None, text, text, None, text, (text,))
    progress = FleetProgressResult(9, 9, (desktop,), (desktop,), (ImageCopyResult(text, text, text),))
    capacity = FleetCapacityResult(
        (PoolRoomResult(text, (text,), 1, 2, text),), (ProfileRoomResult(text, 1, 2, {text: 1}),), 1
    )
    admin = FleetCaller(text, Role.ADMIN)
    return {
        "fleet": fleet_views.fleet_view(overview, query), "pools": fleet_views.pools_view((pool,), query),
        "pool": fleet_views.pool_view(shown, (desktop,), query),
        "desktops": desktop_views.desktops_view((desktop,), text, (text,), (text,), query),
        "desktop": desktop_views.desktop_view(desktop, (event,), query),
        "hosts": host_views.hosts_view(overview, query), "host": host_views.host_view(full, overview, query),
        "images": host_views.images_view((image,), query), "image": host_views.image_view(image, query),
        "journal": desktop_views.journal_view((event,), query),
        "people": people_views.people_view((person,), rights, query),
        "person": people_views.person_view(person, (desktop,)), "tokens": people_views.tokens_view((token,)),
        "rights": people_views.rights_view(rights, (quota,), admin),
        "use": people_views.use_view((use,), {"by": "pool", "pool": text}),
        "progress": progress_views.progress_view(progress),
        "capacity": progress_views.capacity_view(capacity),
        **{path: form_of(change, text) for path, change in CHANGES.items()},
        "plan": plan_of(CHANGES["/change/pool"], shown, text),
        "secret": change_views.secret_page(text, text, text, (text,), "/tokens"),
    }  # fmt: skip


class _Anything:
    """Has this text for each field."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, _: str) -> str:
        return self._text


def form_of(change: WebChange, text: str) -> PageView:
    """Return the form of a change in which a text was typed everywhere, and is wrong."""
    fields = [*(one.name for one in change.single_fields), "schedules.0.days", "schedules.0.from"]
    typed = dict.fromkeys(fields, text)
    both = change_views.versions_section({text: text}, {text: text + "x"})
    return change_views.form_page(
        change, change.visible, typed, _Anything(text), lambda _: (text,), {**typed, "": text}, text, both
    )


def plan_of(change: WebChange, pool: PoolResult, text: str) -> PageView:
    """Return a plan that says a text everywhere."""
    typed, after = {"name": text}, replace(pool, spec={"names": text + "x", "vm": {text: text}})
    plan = change_views.plan_view(change, typed, pool, Outcome(True, pool, (text,), (text,)), text, text)
    return change_views.plan_page(change, typed, pool, change_views.changed_rows(change, pool, after), plan)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_becomes_anything_else_than_text(text: str) -> None:
    plain = {name: _shape(render.render_page(page, Visitor("ada"), "/s")) for name, page in every_page("plain").items()}
    for name, page in every_page(text).items():
        page_text = render.render_page(page, Visitor(text), "/web/stream?page=%2F")
        assert _shape(page_text) == plain[name], name
        tree = html.document_fromstring(page_text.encode(errors="replace").decode())
        assert all(link.startswith(("/", "#")) for link in tree.xpath("//@href | //@src | //@action")), name
        assert not any(
            0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 or c in "\x00\x1b\u200f" for c in page_text
        )


def _shape(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page with the names of their attributes, whatever the text in it."""
    tree = html.document_fromstring(text.encode(errors="replace").decode())
    skipped = ("s-", "pool-", "badge")
    return [
        (one.tag, tuple(sorted(one.attrib)))
        for one in tree.iter()
        if isinstance(one.tag, str) and not any(word in one.get("class", "") for word in skipped)
    ]


def test_what_nobody_sees_is_shown_by_its_number() -> None:
    assert render.harmless("a\u202eb\x00\u200f") == "a‹U+202E›b‹U+0000›‹U+200F›"
    assert render.harmless("Zoë 日本 عربي\nx") == "Zoë 日本 عربي\nx"
    assert render.harmless(5) == 5
    assert len(str(render.harmless("x" * 10**6))) == render.MOST_CHARACTERS + 1


def test_every_phase_counts_as_a_state_with_a_name_and_a_word_of_its_own_in_the_legend() -> None:
    assert set(bars.STATES) == set(map(str, PhaseWord))
    assert set(bars.STATES.values()) | {bars.OTHERS} == set(bars.TEXTS) == {one.state for one in bars.LEGEND} - {"free"}
    assert bars.state_of_phase("of-a-newer-program") == bars.UNKNOWN


def test_a_bar_is_as_wide_as_its_gpu_and_says_all_that_it_shows() -> None:
    bar = bars.gpu_bar(
        gpu(slice_of(), slice_of("failed", user="ada"), slice_of(None, 8192, desktop=None, pool=None)), {"office": 3}
    )
    assert [(one.x, one.width, one.state, one.color) for one in bar.segments] == [
        ("0", "10", "ready", 3), ("10", "10", "failed", 3), ("20", "20", "others", None), ("40", "60", "free", None),
    ]  # fmt: skip
    assert bar.label == "GPU 0000:3b:00.0: 16/40 GiB taken; 1 ready, 1 failed, 1 others"
    assert (bar.name, bar.segments[1].label) == ("3b:00.0", "office-001, A100-4C, failed, ada")
    assert bars.gpu_bar(gpu(slice_of("starting")), {"office": 3}).segments[0].fill == "starting-3"


@pytest.mark.parametrize(
    ("slices", "mib"),
    [((), 40960), ((slice_of(mib=None),), 40960), ((slice_of(),) * 30, 40960), ((slice_of(mib=0),), None), ((), None)],
)
def test_a_bar_never_leaves_its_frame(slices: tuple[GpuSliceResult, ...], mib: int | None) -> None:
    bar = bars.gpu_bar(gpu(*slices, mib=mib), {})
    assert sum(float(one.width) for one in bar.segments) == pytest.approx(100)
    assert all(float(one.x) + float(one.width) <= 100.01 for one in bar.segments)


def test_a_page_of_the_fleet_says_where_it_goes_on_and_what_is_wrong_with_hosts() -> None:
    host = OverviewHostResult("gpu01", "cordoned", "another machine", None, True, 0, ())
    overview = FleetOverviewResult(90, 90, 0, 0, {"failed": 2, "lost": 1}, (), (host,), "gpu40")
    tree = html.document_fromstring(
        render.render_page(fleet_views.fleet_view(overview, {"after": "gpu00"}), Visitor("a"), None)
    )
    assert tree.xpath("//p[@class='more']/a/@href") == ["/", "/?after=gpu40"]
    assert [one.strip() for one in tree.xpath("//h3/span[contains(@class,'badge')]/text()")] == [
        "cordoned", "held", "does not answer",
    ]  # fmt: skip
    assert tree.xpath("//li[@class='bad']/span[@class='value']/text()") == ["3"]
    assert tree.xpath("//body/@data-stream") == []


def test_a_paused_pool_says_why_and_how_it_goes_on() -> None:
    pool = PoolResult("office", "floating", "paused", "new storage", "w11", (), 5, 2, 0, 0, 0, {}, 1, {"names": "a"})
    page = fleet_views.pool_view(pool, (), {})
    tree = html.document_fromstring(render.render_page(page, Visitor("a"), None))
    assert tree.xpath("string(//section[@id='notice']/p)") == "This pool is paused: new storage"
    assert tree.xpath("string(//section[@id='notice']//code)") == "vgpuctl controller resume-pool office"
    draining = fleet_views.pool_view(replace(pool, state="draining", reason=None), (), {})
    assert "resume-pool" not in render.render_page(draining, Visitor("a"), None)
    assert cells.spec_text({"users": ["@a", "b"], "spare": 2}) == "users:\n- '@a'\n- b\nspare: 2\n"


@pytest.mark.parametrize(
    ("state", "moves_live", "can_drain"),
    [
        ("active", False, True),
        ("draining", False, True),
        ("draining", True, False),
        ("maintenance", False, False),
    ],
)
def test_a_host_that_is_drained_can_still_have_its_desktops_move(state: str, moves_live: bool, can_drain: bool) -> None:
    host = FleetHostResult(
        "gpu01", "ssh://gpu01", state, None, None, {}, 1, None, None, None, None, None, None, None, {}, 1,
        moves_live=moves_live,
    )  # fmt: skip
    shown = buttons(FleetCaller("ada", Role.ADMIN), HOST, FleetTarget(), host.name, host)
    assert ("/change/drain-host?name=gpu01" in [one.href for one in shown]) is can_drain


def test_a_full_page_of_the_journal_leads_to_older_entries() -> None:
    events = [
        FleetEventResult(n, "2026-01-02T03:04:05Z", "x", "y", "z", None, None, None, None) for n in range(100, 0, -1)
    ]
    page = desktop_views.journal_view(events, {"kind": "x"})
    assert [one.href for one in page.sections[1].links] == ["/journal?kind=x&before=1", "/journal.csv?kind=x"]
    assert [one.href for one in desktop_views.journal_view(events[1:], {}).sections[1].links] == ["/journal.csv"]
    assert cells.with_query("/a", {"b": "&c", "d": None, "e": ""}) == "/a?b=%26c"
    assert cells.path_of("pools", "../x y") == "/pools/..%2Fx%20y"


def test_errors_show_commands_only_to_who_has_a_role() -> None:
    error = NotFound("there is no desktop x", hint="vgpuctl controller list-desktops")
    assert b"list-desktops" not in error_page(error, Visitor("ada")).body
    assert b"list-desktops" in error_page(error, Visitor("ada", has_role=True)).body
    assert b"try again" in error_page(Busy("not yet", hint="try again in a minute"), Visitor("ada")).body
