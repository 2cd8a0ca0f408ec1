# SPDX-License-Identifier: Apache-2.0
"""Forms come back with what was typed, and what is wrong; two people who change one thing see both versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.web.site import ADMIN, Answer, Site


def sent(site: Site, path: str, headers: dict[str, str] | None = None, **typed: str) -> Answer:
    """Ask for the plan of what is typed into a form."""
    return site.get(f"/change/{path}?{urlencode({**typed, 'plan': 'yes'})}", headers)


def fields(answer: Answer) -> dict[str, str]:
    """Return what a form shows, or keeps; a text area begins after a line's end, as for browsers."""
    (form,) = answer.tree.xpath("//form[@class='change']")
    return {name: str(text).removeprefix("\n") for name, text in form.form_values()}


def problem(answer: Answer, field: str) -> str:
    return str(answer.tree.xpath(f"string(//*[@id='{field}-problem'])")).strip()


def changes(answer: Answer, section: str = "changes") -> list[list[str]]:
    """Return the rows of what changes, or of both versions."""
    rows = answer.tree.xpath(f"//section[@id='{section}']//tbody/tr")
    return [[str(cell.text_content()).strip() for cell in row] for row in rows]


@pytest.fixture(scope="module")
def manager(site: Site) -> dict[str, str]:
    secret = site.fleet.add_token(ADMIN, "manager-of-office", right="manage", pools=["office"]).data.secret
    return {"Authorization": f"Bearer {secret}"}


def test_too_much_text_comes_back(site: Site) -> None:
    text = "x" * 6001
    answer = sent(site, "pause-pool", name="office", reason=text)
    assert (answer.status, fields(answer)["reason"]) == (400, text)
    assert problem(answer, "reason") == "6001 characters, and at most 6000 fit"
    assert site.fleet.show_pool(ADMIN, "office").data.state == "active"
    groups = {name: "g" * 5900 for name in ("groups", "name", "realm")}
    answer = sent(site, "new-person", **groups)
    assert (answer.status, fields(answer)["groups"]) == (400, groups["groups"])
    assert "are too much for an address" in answer.tree.xpath("string(//*[@role='alert'])")


def test_gpu_memory_as_the_command_line_takes_it(site: Site) -> None:
    for typed in ("8GiB", "8G", "8192"):
        answer = sent(site, "new-quota", who="everybody", gpu_mib=typed)
        assert (answer.status, "8192" in answer.text) == (200, True), typed
    answer = sent(site, "new-quota", who="everybody", gpu_mib="8 apples")
    assert (answer.status, fields(answer)["gpu_mib"]) == (400, "8 apples")


def test_a_managers_wrong_pool_comes_back(site: Site, manager: dict[str, str]) -> None:
    typed = {"who": "ada", "right": "use"}
    answer = sent(site, "entitle", manager, **typed, pool="design")
    assert (answer.status, problem(answer, "pool")) == (404, "there is no pool design")
    assert {**typed, "pool": "design"}.items() <= fields(answer).items()
    answer = sent(site, "entitle", manager, **typed)
    assert (answer.status, "entitle needs" in problem(answer, "pool")) == (403, True)
    helper = site.fleet.add_token(ADMIN, "helper-of-office", right="operate", pools=["office"]).data.secret
    refused = sent(site, "entitle", {"Authorization": f"Bearer {helper}"}, **typed, pool="design")
    assert (refused.status, refused.tree.xpath("//main//form")) == (404, [])


def test_tabs_come_back_as_tabs(site: Site) -> None:
    text = "vm:\n\tmemory: 8G"
    answer = sent(site, "new-pool", name="tabs", more=text)
    assert (answer.status, fields(answer)["more"]) == (400, text)


def test_the_plan_of_a_right_shows_the_former_one(site: Site) -> None:
    site.fleet.entitle(ADMIN, "lin", "use", "office")
    typed = {"who": "lin", "pool": "office"}
    assert ["Right", "use", "operate"] in changes(sent(site, "entitle", **typed, right="operate"))
    assert ["Right", "operate"] in changes(sent(site, "entitle", who="lin", pool="design", right="operate"))
    assert fields(site.get(f"/change/entitle?{urlencode(typed)}"))["right"] == "use"
    assert "Nothing changes" in sent(site, "entitle", **typed, right="use").text
    site.fleet.revoke(ADMIN, "lin", "office")


def test_two_people_set_one_quota(site: Site) -> None:
    first = fields(site.get("/change/quota?who=lin"))
    assert first["generation"] == "0"
    site.fleet.ensure_quota(ADMIN, "lin", desktops=5, running=4)
    answer = sent(site, "quota", **{**first, "desktops": "2"})
    assert answer.status == 412
    assert changes(answer, "versions") == [["Desktops", "2", "5"], ["Running", "–", "4"]]
    again = fields(answer)
    assert (int(again["generation"]) > 0, again["desktops"]) == (True, "2")
    assert changes(sent(site, "quota", **again)) == [["Desktops", "5", "2"], ["Running", "4", "–"]]
    new = sent(site, "new-quota", who="lin", desktops="1")
    assert (new.status, problem(new, "who")) == (409, "lin has one already")
    assert fields(site.get("/change/quota?who=lin"))["running"] == "4", "the form has what is there"
    site.fleet.delete_quota(ADMIN, "lin")
    assert sent(site, "quota", **again).status == 412, "it is gone meanwhile"
    site.fleet.ensure_quota(ADMIN, "lin", desktops=9)
    assert sent(site, "quota", **again).status == 412, "there is another one"
    site.fleet.delete_quota(ADMIN, "lin")


def test_two_people_label_one_host(site: Site) -> None:
    first = fields(site.get("/change/label-host?name=gpu01"))
    site.fleet.label_host(ADMIN, "gpu01", {"rack": "7"})
    answer = sent(site, "label-host", **{**first, "labels": "site=berlin"})
    assert (answer.status, fields(answer)["labels"]) == (412, "site=berlin")
    assert changes(answer, "versions") == [["Labels", "site=berlin", "rack=7"]]
    assert sent(site, "label-host", **fields(answer)).status == 200


def test_the_api_has_generations_of_them_too(site: Site) -> None:
    import http.client
    import json

    def put(path: str, body: dict[str, Any], generation: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        headers = {**site.headers, "Content-Type": "application/json", "If-Match": f'"{generation}"'}
        connection.request("PUT", f"/api/v1{path}", json.dumps(body), headers)
        status = connection.getresponse().status
        connection.close()
        return status

    quota = {"who": "mary", "desktops": 1}
    assert [put("/quotas", quota, one) for one in (1, 0, 0)] == [412, 200, 412]
    (first,) = [one.generation for one in site.fleet.list_quotas(ADMIN).data if one.who == "mary"]
    assert put("/quotas", quota, first) == 200, "nothing changes"
    assert [put("/quotas", {**quota, "desktops": 2}, first) for _ in range(2)] == [200, 412]
    host = site.fleet.show_host(ADMIN, "gpu02").data
    assert put("/hosts/gpu02/labels", {"labels": {"a": "b"}}, host.generation + 1) == 412
    assert put("/hosts/gpu02/labels", {"labels": {"a": "b"}}, host.generation) == 200
    site.fleet.delete_quota(ADMIN, "mary")
