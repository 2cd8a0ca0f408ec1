# SPDX-License-Identifier: Apache-2.0
"""What browsers get: each page, its headers, its errors, how large it is and what it costs."""

from __future__ import annotations

import csv
import datetime
import io
import re
from pathlib import Path

import pytest

from tests.web.site import ADMIN, Site, running_site
from vgpuctl.controller.model import NewDesktop, PoolChanges
from vgpuctl.controller.routes import CALLS
from vgpuctl.controller.web import csv_files
from vgpuctl.controller.web.answers import DATA_IMAGES_POLICY, POLICY
from vgpuctl.controller.web.pages import PAGES
from vgpuctl.model.results.people import UseResult

PATHS = (
    "/", "/pools", "/pools/office", "/desktops", "/desktops/office-001", "/desktops/office-001/console", "/hosts",
    "/hosts/gpu01", "/images", "/images/office", "/capacity", "/progress", "/people", "/people/zoe",
    "/rights", "/use", "/tokens", "/journal",
)  # fmt: skip
MOST_QUERIES, MOST_QUERIES_OF_A_HOST, MOST_BYTES = 12, 16, 300_000


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_strict_and_within_its_costs(site: Site, path: str) -> None:
    answer, queries = site.counted(path)
    policy = DATA_IMAGES_POLICY if path.endswith("/console") else POLICY
    assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, policy)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    tree = answer.tree
    assert tree.xpath("count(//h1)") == tree.xpath("count(//main)") == 1
    assert not tree.xpath("//@style | //style | //script[not(@src)] | //@*[starts-with(name(), 'on')]")
    assert tree.xpath("//thead//td | //thead//th[not(@scope='col')] | //tbody//th[not(@scope='row')]") == []
    assert tree.xpath("//svg[contains(@class,'bar')][not(@aria-label)]") == []
    shown = tree.xpath("//nav[@aria-label='Main']//a[@aria-current='page']/@href")
    assert shown == ["/" + path.split("/")[1]], path
    print(f"{path}: {len(answer.body)} bytes, {queries} queries, {len(tree.xpath('//*'))} nodes")


def test_every_page_is_tried_here_and_only_reads() -> None:
    """But those of a person's own desktops and tokens, which a token has not."""
    others = [one for one in PAGES if not one.path.startswith("/my")]
    named = re.compile(r"(?<=.)/(?!console$)[a-z]+(-001|01|)(?=$|/console)")
    assert [one.path for one in others] == [named.sub("/{name}", path) for path in PATHS]
    assert {CALLS[name].method for one in others for name in (*one.calls, *one.more)} == {"GET"}


def linked_pages(site: Site, first: str, headers: dict[str, str] | None = None) -> set[str]:
    """Return all pages to which links lead from a first one. A plan may say why a change cannot be made."""
    seen: set[str] = set()
    new = {first}
    while new:
        path = new.pop()
        seen.add(path)
        answer = site.get(path, headers)
        others = (409,) if path.startswith("/change/") else (303,) if path == "/" else ()
        assert answer.status in (200, *others), path
        if answer.headers.get_content_type() == "text/html" and answer.body:
            tree = answer.tree
            links = {link for link in tree.xpath("//@href | //@src") if not link.startswith("#")}
            assert all(link.startswith("/") for link in links), path
            new |= {link for link in links if not link.startswith("/journal?")} - seen
    return seen


def test_every_link_leads_to_a_page_and_changes_nothing(site: Site) -> None:
    before = site.fleet.list_events(ADMIN).data
    seen = linked_pages(site, "/")
    assert len([path for path in seen if path.startswith("/change/")]) > 50
    assert {path.partition("?")[0] for path in PATHS} <= seen
    assert site.fleet.list_events(ADMIN).data == before


def test_the_fleet_shows_each_slice_with_its_pool_and_state(site: Site) -> None:
    tree = site.get("/").tree
    assert tree.xpath("count(//*[@class='bars']/li)") == 16
    titles = tree.xpath("//*[@class='bars']//rect/title/text()")
    assert sorted(one for one in titles if one != "free") == sorted(
        f"{pool}-00{number}, A100-4C, ready" for pool in ("design", "office", "training") for number in range(1, 5)
    )
    assert tree.xpath("//*[@class='counts']//*[@class='value']/text()")[:4] == ["0", "12", "0", "0"]
    ready = 0
    for label in tree.xpath("//*[@class='bars']//svg/@aria-label"):
        words = re.fullmatch(r"GPU 0000:0[0-3]:00\.0: (\d+)/40 GiB taken; (?:(\d+) ready|none)", label)
        assert words is not None, label
        assert int(words[1]) == 4 * int(words[2] or 0)
        ready += int(words[2] or 0)
    assert ready == 12


def test_filters_are_in_the_address(site: Site) -> None:
    def names(query: str) -> list[str]:
        return list(
            map(str, site.get(f"/desktops?{query}").tree.xpath("//section[@id='desktops']//tbody/tr/th/a/text()"))
        )

    assert names("pool=office") == [f"office-00{number}" for number in range(1, 5)]
    assert sorted(one for number in range(1, 5) for one in names(f"host=gpu0{number}")) == names("")
    assert names("state=failed") == names("user=ada") == names("pool=none") == []
    assert len(names("state=ready")) == 12
    assert names("pool=&after=office-003")[0] == "office-004"
    assert site.get("/desktops?pool=office").tree.xpath("string(//select[@name='pool']/option[@selected])") == "office"


def test_the_journal_has_filters_and_older_entries(site: Site) -> None:
    def texts(query: str) -> list[str]:
        return list(map(str, site.get(f"/journal?{query}").tree.xpath("//tbody/tr/td[2]/text()")))

    added = texts("kind=pool-added")
    assert [one.partition(":")[0] for one in added] == ["training", "design", "office"]
    events = site.fleet.find_events(ADMIN, kind="pool-added").data
    assert texts(f"kind=pool-added&before={events[0].id}") == added[1:]
    assert texts("kind=pool-added&pool=design&person=test") == added[1:2]
    assert texts("host=gpu01&kind=host-added") == ["gpu01 at agent:/gpu01"]
    with site.fleet.made_by(ADMIN):
        site.fleet.cordon_host(ADMIN, "gpu03")
        site.fleet.uncordon_host(ADMIN, "gpu03")
    assert texts("actor_kind=local") == ["gpu03: active", "gpu03: cordoned"]
    assert texts("actor_kind=token") == []
    assert set(texts("actor_kind=controller&kind=handed-out")) <= set(texts("actor_kind=controller"))
    assert texts("actor_kind=controller")
    assert site.get("/journal?actor_kind=ghost").status == 400
    today = datetime.datetime.now(datetime.UTC).date()
    days = [str(today + datetime.timedelta(number)) for number in (-1, 2)]
    assert texts(f"kind=pool-added&since={days[0]}&until={days[1]}") == added
    assert texts(f"kind=pool-added&until={days[0]}") == texts(f"kind=pool-added&since={days[1]}") == []
    assert site.get("/journal?since=yesterday").status == 400
    site.fleet.assign(ADMIN, "design", "zoe")
    name = site.store.desktops.list(user="zoe")[0].name
    assert f"{name} to zoe" in texts("person=zoe")
    assert f"{name} to zoe" in texts(f"desktop={name}")
    assert texts("person=nobody") == []


def test_what_there_is_room_for(site: Site) -> None:
    tree = site.get("/capacity").tree
    (row,) = tree.xpath("//section[@id='profiles']//tbody/tr")
    taken = sum(site.fleet.show_overview(ADMIN).data.counts.values())
    assert [one.text_content().strip() for one in row][:3] == ["A100-4C", str(160 - taken), "160"]
    rows = {r[0].text_content().strip(): [c.text_content().strip() for c in r[1:]] for r in tree.xpath(
        "//section[@id='pools']//tbody/tr")}  # fmt: skip
    assert rows["office"] == ["8", "8", ""]
    site.fleet.cordon_host(ADMIN, "gpu01")
    assert "gpu01" not in site.get("/capacity").tree.xpath("string(//section[@id='profiles'])")
    site.fleet.uncordon_host(ADMIN, "gpu01")


def test_what_is_being_done(tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=1, engine=False) as quiet:
        pool = quiet.store.pools.find("office")
        new = tuple(NewDesktop(f"office-00{number}", f"52:54:00:00:00:0{number}") for number in (1, 2))
        quiet.store.desktops.tick(pool.id, lambda *_: PoolChanges(new))
        broken = quiet.store.desktops.find("office-002")
        with quiet.store.database.write() as connection:
            connection.exec_driver_sql("UPDATE desktop SET host_id = (SELECT id FROM host) WHERE name = 'office-002'")
        for _ in range(3):
            quiet.store.desktops.note_error(broken.id, "no-space", "the disk is full", "make room")
        tree = quiet.get("/progress").tree
        assert tree.xpath("//section[@id='desktops']//tbody//th/a/text()") == ["office-001"]
        assert tree.xpath("//section[@id='failed']//tbody//th/a/text()") == ["office-002"]
        assert "the disk is full" in tree.xpath("string(//section[@id='failed'])")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nope", 404), ("/pools/none", 404), ("/desktops/none", 404), ("/hosts/none", 404), ("/images/none", 404),
        ("/pools/%00", 400), ("/desktops?pool=%00", 400), ("/desktops?pool=a&pool=b", 400), ("/?x=1", 400),
        ("/desktops?state=odd", 400), ("/journal?before=-1", 400), ("/journal?before=" + "9" * 30, 400),
        ("/desktops?user=" + "a" * 300, 400), ("/web/static/0/web.css", 404), ("/web/static/x/..%2fapp.py", 404),
        ("/desktops?user=%E2%80%AE", 400), ("/?section=nope", 404),
    ],
)  # fmt: skip
def test_errors_are_pages_too(site: Site, path: str, status: int) -> None:
    answer = site.get(path)
    assert (answer.status, answer.headers["Content-Security-Policy"]) == (status, POLICY)
    assert "Traceback" not in answer.text
    assert "‮" not in answer.text
    if "static" not in path and "section=" not in path:
        assert "/journal" in answer.tree.xpath("//nav[@aria-label='Main']//a/@href"), "who is signed in keeps his menu"
        assert answer.tree.xpath("string(//*[@class='name'])") == "browser"


def test_who_has_no_token_signs_in(site: Site) -> None:
    for path in (*PATHS, "/my", "/web/stream?page=/"):
        answer = site.get(path, {})
        shown = answer.tree.xpath("string(//main)") + "".join(answer.tree.xpath("//nav//text()"))
        assert (answer.status, "office" in shown, "gpu01" in shown) == (401, False, False), path
        (form,) = answer.tree.forms
        assert [field.name for field in form.inputs] == ["path", "user", "password"]


def test_the_api_and_changes_are_not_answered_with_pages(site: Site) -> None:
    assert site.get("/api/v1/none").headers.get_content_type() == "application/json"
    assert site.get("/api/v1/fits").status == 405
    assert site.get("/", method="POST").status == 405
    assert site.get("/", method="HEAD").body == b""


def test_files_are_kept_for_long_under_the_digest_of_what_is_in_them(site: Site) -> None:
    for url in site.get("/").tree.xpath("//link/@href | //script/@src"):
        answer = site.get(url, {})
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_an_empty_fleet_says_what_to_do_next(tmp_path: Path) -> None:
    with running_site(tmp_path, engine=False) as empty:
        commands = empty.get("/").tree.xpath("//pre/code/text()")
        assert [one.split()[2] for one in commands] == ["add-host", "ensure-pool"]
        for path in ("/pools", "/desktops", "/hosts", "/images", "/journal"):
            assert empty.get(path).status == 200, path
        empty.hosts.add("gpu01")
        empty.fleet.add_host(ADMIN, "gpu01", "agent:/gpu01")
        assert "ensure-image" in empty.get("/").text
        assert "not said yet" in empty.get("/").text


def test_64_gpus_cost_few_queries_and_bytes_and_more_have_one_bar_for_each_host(tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=8, gpus=8, maximum=220, spare=200) as large:
        large.wait_until(lambda: large.ready() == 600, "600 desktops")
        for path in PATHS:
            answer, queries = large.counted(path)
            assert answer.status == 200
            most = MOST_QUERIES_OF_A_HOST if path == "/hosts/gpu01" else MOST_QUERIES
            assert (queries <= most, len(answer.body) <= MOST_BYTES) == (True, True), (path, queries)
        tree = large.get("/").tree
        assert tree.xpath("count(//*[@class='bars']/li)") == 64
        assert tree.xpath("count(//*[@class='bars']//rect[title != 'free'])") == 600
        large.hosts.add("gpu09")
        large.fleet.add_host(ADMIN, "gpu09", "agent:/gpu09")
        large.wait_until(lambda: "72 GPUs" in large.get("/").text, "the ninth host")
        tree = large.get("/").tree
        assert tree.xpath("count(//*[@class='bars']/li)") == 9
        assert "office: " in " ".join(
            tree.xpath("//*[@class='bars']//svg/@aria-label | //*[@class='bars']//title/text()")
        )


def csv_rows(site: Site, path: str) -> list[dict[str, str]]:
    """Return the rows of a file, which browsers save."""
    answer = site.get(path)
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/csv")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{path[1:].partition(".")[0]}.csv"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_use_and_journal_are_files_with_the_same_filters(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    person = "=cmd|'/c calc'!A1"
    site.store.use.refuse("office", person, "no-capacity")
    (link,) = site.get("/use?by=person&pool=office").tree.xpath("//a[text()='Download as CSV']/@href")
    assert link == "/use.csv?by=person&pool=office"
    row = next(one for one in csv_rows(site, link) if one["name"].endswith(person))
    assert row["name"] == f"'{person}", "no spreadsheet computes it"
    assert (row["refused"], row["assigned_hours"]) == ("no-capacity=1", "0.0")
    assert row["gpu_used_gib_hours"] == row["gpu_used_percent"] == "", "not known is not 0"
    (link,) = site.get("/journal?kind=pool-added&before=9999999").tree.xpath("//a[text()='Download as CSV']/@href")
    entries = csv_rows(site, link)
    assert [one["pool"] for one in entries] == ["training", "design", "office"]
    monkeypatch.setattr(csv_files, "PART", 2)
    assert csv_rows(site, link) == entries, "more than is read at a time"
    monkeypatch.setattr(csv_files, "MOST_ROWS", 2)
    assert csv_rows(site, link) == entries[:2]
    assert site.get("/use.csv?by=nothing").status == 400
    assert site.get("/journal.csv", {}).status == 401


@pytest.mark.parametrize("text", ["=1", "+1", "-1+1", "@a", " \t=1", "\r1", "＝1", "\n@a"])
def test_no_cell_of_a_file_is_computed(text: str) -> None:
    use = UseResult(text, 1.0, 1.0, None, 1.0, None, 0.0, None, None, 0, {})
    row = list(csv.reader(io.StringIO(csv_files.csv_text(UseResult, [use]), newline="")))[1]
    assert row[:4] == [f"'{text}", "1.0", "1.0", ""]
