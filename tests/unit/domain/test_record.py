# SPDX-License-Identifier: Apache-2.0
"""The record reads the same with either parser."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from lxml import etree

from tests.values import MACHINE, T2Q, assigned, t4, vm_uuid
from vgpuctl.domain.record import parse_record, record_to_xml
from vgpuctl.model.vm import ManagedDisk, RecordState, VmRecord

RECORD = VmRecord(
    RecordState.READY,
    vm_uuid(1),
    MACHINE,
    (assigned(t4(), T2Q, params="frame_rate_limiter=0"),),
    (ManagedDisk("default", "vm.qcow2", "/images/vm.qcow2", 1024),),
    '{"profile": ["T4-2Q"]}',
)


@pytest.mark.parametrize("parse", [etree.fromstring, ElementTree.fromstring])
def test_both_parsers_read_what_was_written(parse):
    assert parse_record(parse(record_to_xml(RECORD))) == RECORD


@pytest.mark.parametrize("parse", [etree.fromstring, ElementTree.fromstring])
def test_a_record_that_lacks_something_says_what(parse):
    text = record_to_xml(RECORD).replace('index="0"', 'index="x"')
    with pytest.raises(ValueError, match="index 'x' is not a number"):
        parse_record(parse(text))
    with pytest.raises(ValueError, match="vgpu has no gpu"):
        parse_record(parse(record_to_xml(RECORD).replace(' gpu="', ' other="')))
