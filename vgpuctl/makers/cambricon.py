# SPDX-License-Identifier: Apache-2.0
"""Cambricon: plain VFs, whose number `sriov_numvfs` sets; newer software (sMLU) divides a card for containers only.

Source: Cambricon's plugin for Kubernetes, Cambricon/cambricon-k8s-device-plugin at b714ead (cndev.go: it reads
sriov_totalvfs and writes sriov_numvfs). The vendor id is that of pci.ids. Nobody has tried this on such a card.
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker


class Cambricon(Maker):
    """Cambricon."""

    name = "Cambricon"
    vendor_id = "cabc"
    usage_tool = "cnmon"
    slicing = "Cambricon's cards have VFs without profiles (--mode sriov), and sMLU divides a card for containers only"
