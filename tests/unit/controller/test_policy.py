# SPDX-License-Identifier: Apache-2.0
"""The one function that decides who may what."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.controller.planning.fleets import pool_of
from vgpuctl.controller.model import CallerKind, FleetCaller, Right, Role
from vgpuctl.controller.policy import (
    MANAGED_FIELDS,
    Access,
    FleetDecision,
    FleetTarget,
    decide,
    refuse_of_manager,
    rights_text,
    sees_pool,
)
from vgpuctl.errors import NotAllowed
from vgpuctl.value import field_names, replace

OFFICE, LAB = FleetTarget("office"), FleetTarget("lab")
ROLES, RIGHTS = (None, *Role), (None, *Right)


def person(role: Role | None = None, **rights: Right) -> FleetCaller:
    return FleetCaller("ada", role, CallerKind.PERSON, rights)


@pytest.mark.parametrize(("has", "needs"), [*itertools.product(ROLES, ROLES)])
def test_a_role_includes_those_below(has, needs):
    order = [None, Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    is_allowed = needs is not None and order.index(has) >= order.index(needs)
    for target in (OFFICE, FleetTarget(), FleetTarget("office", "eve")):
        assert (decide(person(has), Access(needs), target) is FleetDecision.ALLOW) is is_allowed


@pytest.mark.parametrize(("has", "needs"), [*itertools.product(RIGHTS, RIGHTS)])
def test_a_right_holds_on_its_pool_alone(has, needs):
    caller = person(office=has) if has else person()
    order = [None, Right.USE, Right.OPERATE, Right.MANAGE]
    is_allowed = needs is not None and order.index(has) >= order.index(needs)
    access = Access(Role.ADMIN, needs)
    assert decide(caller, access, FleetTarget()) is FleetDecision.DENY, "a call about no pool is about all of them"
    access = Access(Role.ADMIN, needs, any_pool=True)
    assert (decide(caller, access, OFFICE) is FleetDecision.ALLOW) is is_allowed
    assert decide(caller, access, LAB) is FleetDecision.HIDE
    assert (decide(caller, access, FleetTarget()) is FleetDecision.ALLOW) is is_allowed, "of no pool: on any"


def test_what_somebody_may_not_know_of_is_hidden():
    access = Access(Role.ADMIN)
    assert decide(person(), access, OFFICE) is FleetDecision.HIDE
    assert decide(person(office=Right.USE), access, OFFICE) is FleetDecision.DENY
    assert decide(person(Role.VIEWER), access, OFFICE) is FleetDecision.DENY
    assert decide(person(), access, FleetTarget()) is FleetDecision.DENY
    assert decide(person(), access, FleetTarget("office", "ada")) is FleetDecision.DENY


def test_who_uses_a_pool_sees_no_desktops_of_others():
    access, others = Access(Role.OPERATOR, Right.OPERATE, own=True), FleetTarget("office", "eve", is_desktop=True)
    assert decide(person(office=Right.USE), access, others) is FleetDecision.HIDE
    assert decide(person(office=Right.OPERATE), replace(access, right=Right.MANAGE), others) is FleetDecision.DENY
    assert decide(person(office=Right.USE), access, replace(others, owner="ada")) is FleetDecision.ALLOW


def test_a_desktop_of_ones_own():
    access = Access(Role.OPERATOR, Right.OPERATE, own=True)
    assert decide(person(), access, FleetTarget("office", "ada")) is FleetDecision.ALLOW
    assert decide(person(), access, FleetTarget("office", "eve")) is FleetDecision.HIDE
    assert decide(person(), access, FleetTarget("office", None)) is FleetDecision.HIDE
    assert decide(person(), replace(access, own=False), FleetTarget("office", "ada")) is FleetDecision.DENY
    token = FleetCaller("ada", None, CallerKind.TOKEN)
    assert decide(token, access, FleetTarget("office", "ada")) is FleetDecision.HIDE, (
        "a token with a person's name is nobody"
    )


def test_about_oneself():
    access = Access(None, myself=True)
    assert decide(person(), access, FleetTarget()) is FleetDecision.ALLOW
    for kind in (CallerKind.TOKEN, CallerKind.LOCAL):
        assert decide(FleetCaller("ada", Role.ADMIN, kind), access, FleetTarget()) is FleetDecision.DENY


def test_what_is_in_answers():
    assert sees_pool(person(Role.VIEWER), "office")
    assert sees_pool(person(office=Right.OPERATE), "office")
    assert not sees_pool(person(office=Right.OPERATE), "lab")
    assert not sees_pool(person(office=Right.USE), "office")
    assert not sees_pool(person(office=Right.OPERATE), "office", Right.MANAGE)
    assert rights_text(person()) == "no rights"
    assert rights_text(person(Role.VIEWER, office=Right.USE)) == "the role viewer, use on office"


def test_what_a_pools_manager_changes():
    before = pool_of().spec
    refuse_of_manager(before, replace(before, image="new", spare=3, boot_minutes=20))
    for changed in (replace(before, maximum=99), replace(before, hosts={"a": "b"}), replace(before, vm={"memory": 1})):
        with pytest.raises(NotAllowed, match="an operator of the fleet decides"):
            refuse_of_manager(before, replace(changed, image="new"))
    assert {*field_names(before)} > MANAGED_FIELDS
