# SPDX-License-Identifier: Apache-2.0
"""Makers of whose cards only the whole is known to go to a VM: MetaX, Hygon, Iluvatar, Enflame, Kunlunxin and others.

Their software divides a card between containers. A card that has VFs under its driver is used as one with plain VFs,
like any other; that is the rule for Biren. Nobody has tried any of this on such a card.

Sources: the vendor ids are those of pci.ids, which has none of Biren; 1ee0 and the driver BEV_HYPER_DRIVER, whose VFs
go to the VMs of Kata Containers through VFIO, are in Biren's plugin for Kubernetes (brgpu, 2024). Containers: the
resources of Project-HAMi/HAMi v2.10 (charts/hami/values.yaml). MetaX's `metax-tech.com/vfio-gpu` gives whole cards to
VMs (notes of a KubeVirt site, 2026). pci.ids has a VF of Kunlun 2 (1d22:3685) and a vGPU of Vastai's SG100 (1ec6:020f).
Hygon's vendor id is also that of the bridges and network cards of its CPUs. Kunlunxin has Baidu's id and one of its
own: xpu-smi prints 0x36862057 for a P800 (zstackio/zstack-utility, zstacklib/zstacklib/gpu/vendors/kunlunxin.py).
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker


class WholeCardMaker(Maker):
    """A maker whose cards have no vGPU types for VMs, as far as is known."""

    def __init__(
        self, name: str, vendor_id: str, slicing: str, usage_tool: str | None, *, has_network_cards: bool = False
    ) -> None:
        """Take its facts, as in `Maker`."""
        self.name = name
        self.vendor_id = vendor_id
        self.slicing = slicing
        self.usage_tool = usage_tool
        self.has_network_cards = has_network_cards


def _for_containers(name: str) -> str:
    return f"{name} divides a card between containers only; a VM gets the whole card"


_BIREN = "Biren's driver BEV_HYPER_DRIVER divides a card into VFs without profiles; with VFs on, use --mode sriov"
_VASTAI = "how a VM gets a part of a Vastai card is not published; it gets the whole card"
WHOLE_CARD_MAKERS = (
    WholeCardMaker("MetaX", "9999", _for_containers("MetaX's sGPU"), "mx-smi"),
    WholeCardMaker("Hygon", "1d94", _for_containers("Hygon's vDCU"), "hy-smi", has_network_cards=True),
    WholeCardMaker("Biren", "1ee0", _BIREN, None),
    WholeCardMaker("Iluvatar", "1e3e", _for_containers("Iluvatar's vGPU"), "ixsmi"),
    WholeCardMaker("Enflame", "1e36", _for_containers("Enflame's DRS"), "efsmi"),
    WholeCardMaker("Kunlunxin", "1d22", _for_containers("Kunlunxin's vXPU"), "kunlun-xpu-smi"),
    WholeCardMaker("Kunlunxin", "2057", _for_containers("Kunlunxin's vXPU"), "kunlun-xpu-smi"),
    WholeCardMaker("Vastai", "1ec6", _VASTAI, None),
)
"""Each of them, for `MAKERS`."""
