# SPDX-License-Identifier: Apache-2.0
"""The record reads the same with either parser."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from lxml import etree

from tests.values import MACHINE, T2Q, promised, t4, vm_uuid
from vgpuctl.domain.metadata import promise_to_xml
from vgpuctl.domain.record import promise_of
from vgpuctl.model.vm import MadeDisk, Promise, PromiseState

PROMISE = Promise(
    PromiseState.READY,
    vm_uuid(1),
    MACHINE,
    (promised(t4(), T2Q, params="frame_rate_limiter=0"),),
    (MadeDisk("default", "vm.qcow2", "/images/vm.qcow2", 1024),),
    '{"profile": ["T4-2Q"]}',
)


@pytest.mark.parametrize("parse", [etree.fromstring, ElementTree.fromstring])
def test_both_parsers_read_what_was_written(parse):
    assert promise_of(parse(promise_to_xml(PROMISE))) == PROMISE


@pytest.mark.parametrize("parse", [etree.fromstring, ElementTree.fromstring])
def test_a_record_that_lacks_something_says_what(parse):
    text = promise_to_xml(PROMISE).replace('index="0"', 'index="x"')
    with pytest.raises(ValueError, match="index 'x' is not a number"):
        promise_of(parse(text))
    with pytest.raises(ValueError, match="vgpu has no gpu"):
        promise_of(parse(promise_to_xml(PROMISE).replace(' gpu="', ' other="')))
