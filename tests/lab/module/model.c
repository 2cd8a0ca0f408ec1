// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cards that this module plays: their types and MIG profiles.
 *
 * Figures are those of vgpu-types.csv and of `nvidia-smi mig -lgip`. A
 * time-sliced type has no GPU instance profile; such types come first,
 * because a card in the form mdev-pf (which no card with MIG has) offers
 * them alone. Of the Blackwell card there is a choice, and where its GPU
 * instances may be is by analogy with the A30: it is not published.
 */
#include <linux/string.h>

#include "vgpulab.h"

#define TYPE(id, name, mib, max, profile, per_gi) \
	{ id, #id, name, mib, max, profile, per_gi }

/* The C series of an A100 PCIe 40GB. */
static const struct lab_type a100_types[] = {
	TYPE(468, "GRID A100-4C", 4096, 10, LAB_NO_PROFILE, 0),
	TYPE(469, "GRID A100-5C", 5120, 8, LAB_NO_PROFILE, 0),
	TYPE(470, "GRID A100-8C", 8192, 5, LAB_NO_PROFILE, 0),
	TYPE(471, "GRID A100-10C", 10240, 4, LAB_NO_PROFILE, 0),
	TYPE(472, "GRID A100-20C", 20480, 2, LAB_NO_PROFILE, 0),
	TYPE(473, "GRID A100-40C", 40960, 1, LAB_NO_PROFILE, 0),
	TYPE(474, "GRID A100-1-5C", 5120, 7, 19, 1),
	TYPE(475, "GRID A100-2-10C", 10240, 3, 14, 1),
	TYPE(476, "GRID A100-3-20C", 20480, 2, 9, 1),
	TYPE(477, "GRID A100-4-20C", 20480, 1, 5, 1),
	TYPE(478, "GRID A100-7-40C", 40960, 1, 0, 1),
	TYPE(706, "GRID A100-1-5CME", 5120, 1, 20, 1),
	TYPE(1053, "GRID A100-1-10C", 10240, 4, 15, 1),
};

static const struct lab_gi_profile a100_profiles[] = {
	{ 19, 0x0, "1g.5gb", 1, 4864, 7, 1, 7, { 0, 1, 2, 3, 4, 5, 6 } },
	{ 20, 0x7, "1g.5gb+me", 1, 4864, 1, 1, 7, { 0, 1, 2, 3, 4, 5, 6 } },
	{ 15, 0x9, "1g.10gb", 1, 9856, 4, 2, 4, { 0, 2, 4, 6 } },
	{ 14, 0x1, "2g.10gb", 2, 9856, 3, 2, 3, { 0, 2, 4 } },
	{ 9, 0x2, "3g.20gb", 3, 19968, 2, 4, 2, { 0, 4 } },
	{ 5, 0x3, "4g.20gb", 4, 19968, 1, 4, 1, { 0 } },
	{ 0, 0x4, "7g.40gb", 7, 40192, 1, 8, 1, { 0 } },
};

#define DC "NVIDIA RTX Pro 6000 Blackwell DC-"

static const struct lab_type rtx_pro_6000_types[] = {
	TYPE(1518, DC "2B", 2048, 32, LAB_NO_PROFILE, 0),
	TYPE(1519, DC "3Q", 3072, 32, LAB_NO_PROFILE, 0),
	TYPE(1521, DC "4Q", 4096, 24, LAB_NO_PROFILE, 0),
	TYPE(1540, DC "48Q", 49152, 2, LAB_NO_PROFILE, 0),
	TYPE(1546, DC "1-2Q", 2048, 48, 47, 12),
	TYPE(1551, DC "1-4Q", 4096, 24, 47, 6),
	TYPE(1561, DC "1-24Q", 24576, 4, 47, 1),
	TYPE(1564, DC "2-12Q", 12288, 8, 35, 4),
	TYPE(1573, DC "2-48Q", 49152, 2, 35, 1),
	TYPE(1576, DC "4-24Q", 24576, 4, 32, 4),
};

static const struct lab_gi_profile rtx_pro_6000_profiles[] = {
	{ 14, 0x0, "1g.24gb", 1, 23675, 4, 1, 4, { 0, 1, 2, 3 } },
	{ 47, 0xa, "1g.24gb+gfx", 1, 23675, 4, 1, 4, { 0, 1, 2, 3 } },
	{ 5, 0x1, "2g.48gb", 2, 47616, 2, 2, 2, { 0, 2 } },
	{ 35, 0xb, "2g.48gb+gfx", 2, 47616, 2, 2, 2, { 0, 2 } },
	{ 0, 0x3, "4g.96gb", 4, 95621, 1, 4, 1, { 0 } },
	{ 32, 0xc, "4g.96gb+gfx", 4, 95621, 1, 4, 1, { 0 } },
};

static const struct lab_model models[] = {
	{
		.word = "a100",
		.name = "NVIDIA A100-PCIE-40GB",
		.device = 0x20f1,
		.architecture = LAB_AMPERE,
		.memory_mib = 40960,
		.slices = 8,
		.types = a100_types,
		.nr_types = ARRAY_SIZE(a100_types),
		.nr_time_sliced = 6,
		.profiles = a100_profiles,
		.nr_profiles = ARRAY_SIZE(a100_profiles),
	},
	{
		.word = "rtx-pro-6000",
		.name = "NVIDIA RTX PRO 6000 Blackwell Server Edition",
		.device = 0x2bb5,
		.architecture = LAB_BLACKWELL,
		.memory_mib = 98304,
		.slices = 4,
		.types = rtx_pro_6000_types,
		.nr_types = ARRAY_SIZE(rtx_pro_6000_types),
		.nr_time_sliced = 4,
		.profiles = rtx_pro_6000_profiles,
		.nr_profiles = ARRAY_SIZE(rtx_pro_6000_profiles),
	},
};

const struct lab_model *lab_find_model(const char *word)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(models); i++)
		if (!strcmp(models[i].word, word))
			return &models[i];
	return NULL;
}
