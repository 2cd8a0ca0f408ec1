# SPDX-License-Identifier: Apache-2.0
"""What a model may be called on a command line and in host.yaml."""

from __future__ import annotations

import pytest

from vgpuctl.model.gpu import Gpu, GpuMode

PRO, A100 = "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA A100-PCIE-40GB"


@pytest.mark.parametrize(
    ("model", "words", "yes"),
    [
        (PRO, PRO.lower(), True),
        (PRO, "RTX PRO 6000", True),
        (PRO, "blackwell", True),
        (PRO, "RTX 6000", False),
        (PRO, "PRO 600", False),
        (PRO, "", False),
        (A100, "a100", True),
        (A100, "A100-PCIE-40GB", True),
        (A100, "NVIDIA A100", False),
        ("Navi 31 [Radeon PRO W7900]", "radeon pro w7900", True),
        ("Navi 31 [Radeon PRO W7900]", "[Radeon PRO W7900]", True),
    ],
)
def test_a_model_is_called_by_words_of_its_name_in_a_row(model, words, yes):
    assert Gpu("0000:17:00.0", "", model, None, None, GpuMode.UNMANAGED).has_model_name(words) is yes
