// SPDX-License-Identifier: GPL-2.0-only
/*
 * Time-sliced vGPUs of several sizes on one card (NVML: heterogeneous mode).
 *
 * A card is as many units long as it has GiB. A type has a size in units and
 * a list of units where one may start; two vGPUs may not share a unit. The
 * lists are those of the open kernel modules' kernel_vgpu_mgr.c: before
 * Blackwell the card is halved until there are as many parts as vGPUs, or
 * half as many with one at either end; since Blackwell they are evenly apart.
 */
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/log2.h>

#include "vgpulab.h"

unsigned int lab_placement_size(const struct lab_model *model,
				const struct lab_type *type)
{
	unsigned int size = type->framebuffer_mib / 1024;

	return model->memory_mib == 98304 && size == 2 ? 3 : size;
}

static unsigned int lab_halved(unsigned int region, unsigned int size,
			       unsigned int max, unsigned int *ids)
{
	bool both = max > 1 && is_power_of_2(max);
	unsigned int parts = both ? max / 2 : rounddown_pow_of_two(max);
	unsigned int length = region / parts, n = 0, i;

	for (i = 0; i < parts; i++) {
		if (both || i % 2 == 0)
			ids[n++] = i * length;
		if (both || i % 2)
			ids[n++] = (i + 1) * length - size;
	}
	return n;
}

/* Fills `ids` (LAB_MAX_PLACEMENTS) and returns their number; none of a type of MIG's. */
unsigned int lab_placements(const struct lab_model *model,
			    const struct lab_type *type, unsigned int *ids)
{
	unsigned int region = model->memory_mib / 1024, max = type->max_instance;
	unsigned int i;

	if (type->gi_profile != LAB_NO_PROFILE)
		return 0;
	if (model->architecture < LAB_BLACKWELL)
		return lab_halved(region, lab_placement_size(model, type), max,
				  ids);
	for (i = 0; i < max; i++)
		ids[i] = region * i / max;
	return max;
}

/* Whether a vGPU may start there; one of `self` is no obstacle to itself. Needs card->lock, as do the next. */
bool lab_placement_fits(const struct lab_card *card,
			const struct lab_type *type, unsigned int id,
			const struct lab_vgpu_slot *self)
{
	unsigned int size = lab_placement_size(card->model, type);
	unsigned int ids[LAB_MAX_PLACEMENTS], n, i;
	const struct lab_vgpu_slot *slot;
	bool known = false;

	n = lab_placements(card->model, type, ids);
	for (i = 0; i < n; i++)
		known |= ids[i] == id;
	for (slot = card->vgpus; slot < card->vgpus + LAB_MAX_VGPUS; slot++)
		if (slot->type && slot != self && id < slot->placement +
		    lab_placement_size(card->model, slot->type) &&
		    slot->placement < id + size)
			return false;
	return known;
}

/* The first one that fits, LAB_NOWHERE when none does. */
unsigned int lab_first_placement(const struct lab_card *card,
				 const struct lab_type *type)
{
	unsigned int ids[LAB_MAX_PLACEMENTS], n, i;

	n = lab_placements(card->model, type, ids);
	for (i = 0; i < n; i++)
		if (lab_placement_fits(card, type, ids[i], NULL))
			return ids[i];
	return LAB_NOWHERE;
}

/* "mixed 0|1" */
int lab_mixed_set(struct lab_card *card, const char *text)
{
	unsigned int wanted;

	if (sscanf(text, "mixed %u", &wanted) != 1 || wanted > 1)
		return -EINVAL;
	if (card->form == LAB_MDEV_PF || card->mig || !pci_num_vf(card->pdev))
		return -EOPNOTSUPP;
	if (card->nr_vgpus)
		return -EBUSY;
	card->mixed = wanted;
	return 0;
}

void lab_mixed_show(struct seq_file *out, const struct lab_card *card)
{
	unsigned int ids[LAB_MAX_PLACEMENTS], n, i, k;
	const struct lab_type *type;

	seq_printf(out, "mixed %d %d\n", card->form != LAB_MDEV_PF, card->mixed);
	for (i = 0; i < card->model->nr_time_sliced; i++) {
		type = &card->model->types[i];
		n = lab_placements(card->model, type, ids);
		seq_printf(out, "places %u %u", type->id,
			   lab_placement_size(card->model, type));
		for (k = 0; k < n; k++)
			seq_printf(out, " %u%s", ids[k], card->mixed &&
				   lab_placement_fits(card, type, ids[k], NULL) ?
				   "+" : "");
		seq_puts(out, "\n");
	}
}
