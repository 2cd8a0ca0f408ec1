// SPDX-License-Identifier: GPL-2.0-only
/*
 * MIG: its mode, GPU instances (GIs) and compute instances (CIs).
 *
 * The mode outlives the driver's hold on the card (the parameter `mig` is
 * what its InfoROM says when the module is loaded); the instances do not.
 * On Ampere it takes a reset to change the mode. The driver makes that
 * reset itself, unless somebody else has it open: then the mode is pending.
 */
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/string.h>

#include "vgpulab.h"

static bool mig_at_reset;
module_param(mig_at_reset, bool, 0644);
MODULE_PARM_DESC(mig_at_reset, "Ampere changes MIG's mode at its next reset, also when nobody else has it open");

bool lab_has_mig(const struct lab_card *card)
{
	return card->form != LAB_MDEV_PF;
}

/* The driver takes the card, or resets it. Needs card->lock, as do all that follow. */
void lab_mig_begin(struct lab_card *card)
{
	card->mig = card->mig_pending;
	memset(card->gis, 0, sizeof(card->gis));
}

static bool lab_has_gis(const struct lab_card *card)
{
	const struct lab_gi *gi;

	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++)
		if (gi->profile)
			return true;
	return false;
}

/* "mig 0|1" */
int lab_mig_set(struct lab_card *card, const char *text)
{
	unsigned int wanted;

	if (sscanf(text, "mig %u", &wanted) != 1 || wanted > 1)
		return -EINVAL;
	if (!lab_has_mig(card))
		return -EOPNOTSUPP;
	if (card->mig == wanted && card->mig_pending == wanted)
		return 0;
	if (pci_num_vf(card->pdev) || card->nr_vgpus || lab_has_gis(card))
		return -EBUSY;
	card->mig_pending = wanted;
	if (card->mig != wanted &&
	    (card->model->architecture > LAB_AMPERE ||
	     (lab_nr_clients() <= 1 && !mig_at_reset)))
		lab_begin(card);
	return 0;
}

/* -------------------------------------------------------- GPU instances */

struct lab_gi *lab_gi_by_id(struct lab_card *card, unsigned int id)
{
	struct lab_gi *gi;

	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++)
		if (gi->profile && gi->id == id)
			return gi;
	return NULL;
}

static bool lab_gi_fits(struct lab_card *card,
			const struct lab_gi_profile *profile,
			unsigned int start)
{
	const struct lab_gi *gi;

	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++)
		if (gi->profile && gi->start < start + profile->span &&
		    start < gi->start + gi->profile->span)
			return false;
	return true;
}

/* Ids are given by the length of an instance: the longest has 0. */
static unsigned int lab_gi_new_id(struct lab_card *card,
				  const struct lab_gi_profile *profile)
{
	unsigned int id = card->model->slices / profile->span - 1;

	while (lab_gi_by_id(card, id))
		id++;
	return id;
}

static struct lab_gi *lab_gi_unused(struct lab_card *card,
				    const struct lab_gi_profile *profile)
{
	struct lab_gi *gi, *found = NULL;
	unsigned int n = 0;

	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++) {
		n += gi->profile == profile;
		if (!gi->profile && !found)
			found = gi;
	}
	return n < profile->max_instance ? found : NULL;
}

/* "gi PROFILE [START]"; without a start the first that fits */
int lab_gi_make(struct lab_card *card, const char *text)
{
	const struct lab_model *model = card->model;
	const struct lab_gi_profile *profile = NULL;
	unsigned int id, start = LAB_NOWHERE, i;
	struct lab_gi *gi;
	bool known = false;

	if (sscanf(text, "gi %u %u", &id, &start) < 1)
		return -EINVAL;
	if (!card->mig)
		return -EOPNOTSUPP;
	for (i = 0; i < model->nr_profiles; i++)
		if (model->profiles[i].id == id)
			profile = &model->profiles[i];
	if (!profile)
		return -EINVAL;
	for (i = 0; i < profile->nr_starts; i++) {
		if (start == LAB_NOWHERE &&
		    lab_gi_fits(card, profile, profile->starts[i]))
			start = profile->starts[i];
		known |= start == profile->starts[i];
	}
	if (start != LAB_NOWHERE && !known)
		return -EINVAL;
	gi = lab_gi_unused(card, profile);
	if (start == LAB_NOWHERE || !gi || !lab_gi_fits(card, profile, start))
		return -ENOSPC;
	id = lab_gi_new_id(card, profile);
	*gi = (struct lab_gi) {
		.profile = profile,
		.id = id,
		.start = start,
		.scheduler = card->scheduler,
	};
	return 0;
}

/* "drop_gi ID" */
int lab_gi_drop(struct lab_card *card, const char *text)
{
	struct lab_gi *gi;
	unsigned int id, i;

	if (sscanf(text, "drop_gi %u", &id) != 1)
		return -EINVAL;
	gi = lab_gi_by_id(card, id);
	if (!gi)
		return -ENOENT;
	if (gi->nr_vgpus)
		return -EBUSY;
	for (i = 0; i < LAB_MAX_CIS; i++)
		if (gi->cis[i])
			return -EBUSY;
	gi->profile = NULL;
	return 0;
}

/* A vGPU's own instance has room for it again. */
static bool lab_gi_takes(const struct lab_gi *gi, const struct lab_type *type)
{
	return gi->profile && gi->profile->id == type->gi_profile &&
	       gi->nr_vgpus < type->max_per_gi &&
	       (!gi->nr_vgpus || gi->framebuffer_mib == type->framebuffer_mib);
}

struct lab_gi *lab_gi_with_room(struct lab_card *card,
				const struct lab_type *type, unsigned int id)
{
	struct lab_gi *gi, *found = NULL;

	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++)
		if (lab_gi_takes(gi, type) &&
		    (id == LAB_NOWHERE || gi->id == id) &&
		    (!found || gi->id < found->id))
			found = gi;
	return found;
}

/* ----------------------------------------------------- compute instances */

static unsigned int lab_ci_slices(const struct lab_gi *gi)
{
	unsigned int sum = 0, i;

	for (i = 0; i < LAB_MAX_CIS; i++)
		sum += gi->cis[i];
	return sum;
}

/* "ci GI SLICES" */
int lab_ci_make(struct lab_card *card, const char *text)
{
	unsigned int id, slices, i = 0;
	struct lab_gi *gi;

	if (sscanf(text, "ci %u %u", &id, &slices) != 2)
		return -EINVAL;
	gi = lab_gi_by_id(card, id);
	if (!gi)
		return -ENOENT;
	if (!slices || slices > gi->profile->slices)
		return -EINVAL;
	if (lab_ci_slices(gi) + slices > gi->profile->slices)
		return -ENOSPC;
	while (gi->cis[i])
		i++;
	gi->cis[i] = slices;
	return 0;
}

/* "drop_ci GI ID" */
int lab_ci_drop(struct lab_card *card, const char *text)
{
	unsigned int id, ci;
	struct lab_gi *gi;

	if (sscanf(text, "drop_ci %u %u", &id, &ci) != 2)
		return -EINVAL;
	gi = lab_gi_by_id(card, id);
	if (!gi || ci >= LAB_MAX_CIS || !gi->cis[ci])
		return -ENOENT;
	gi->cis[ci] = 0;
	return 0;
}

/* ------------------------------------------------------------------ show */

static void lab_profile_show(struct seq_file *out,
			     const struct lab_gi_profile *profile)
{
	unsigned int i;

	seq_printf(out, "gi_profile %u %u %u %u %u %u %s", profile->id,
		   profile->index, profile->slices, profile->memory_mib,
		   profile->max_instance, profile->span, profile->name);
	for (i = 0; i < profile->nr_starts; i++)
		seq_printf(out, " %u", profile->starts[i]);
	seq_puts(out, "\n");
}

void lab_mig_show(struct seq_file *out, const struct lab_card *card)
{
	const struct lab_gi *gi;
	unsigned int i;

	seq_printf(out, "mig %d %d %d\n", lab_has_mig(card), card->mig,
		   card->mig_pending);
	for (i = 0; lab_has_mig(card) && i < card->model->nr_profiles; i++)
		lab_profile_show(out, &card->model->profiles[i]);
	for (gi = card->gis; gi < card->gis + LAB_MAX_GIS; gi++) {
		if (!gi->profile)
			continue;
		seq_printf(out, "gi %u %u %u\n", gi->id, gi->profile->id,
			   gi->start);
		if (card->model->architecture >= LAB_BLACKWELL)
			seq_printf(out, "gi_scheduler %u %u %u %u %u\n", gi->id,
				   gi->scheduler.policy, gi->scheduler.mode,
				   gi->scheduler.factor, gi->scheduler.slice_ns);
		for (i = 0; i < LAB_MAX_CIS; i++)
			if (gi->cis[i])
				seq_printf(out, "ci %u %u %u\n", gi->id, i,
					   gi->cis[i]);
	}
}
