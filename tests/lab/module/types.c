// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a card can carry, and how much of it is left.
 *
 * Every form asks the same three questions (is there room, take it, give it
 * back), so that the rules are stated once. Time-sliced vGPUs of one size:
 * an empty card offers every type, the first vGPU fixes the framebuffer size
 * of all others, and a type's max_instance caps the card. Mixed sizes: who
 * finds a place. With MIG: who finds a GPU instance of its type's profile.
 */
#include <linux/atomic.h>
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/string.h>

#include "vgpulab.h"

const struct lab_type *lab_find_type(const struct lab_card *card,
				     unsigned int id)
{
	unsigned int i;

	for (i = 0; i < card->nr_types; i++)
		if (card->model->types[i].id == id)
			return &card->model->types[i];
	return NULL;
}

/*
 * How many more vGPUs of this type the card takes now. With MIG or mixed
 * sizes, which are on cards whose functions carry one each, 1 is "some".
 */
unsigned int lab_room(struct lab_card *card, const struct lab_type *type)
{
	lockdep_assert_held(&card->lock);

	if (card->mig != (type->gi_profile != LAB_NO_PROFILE))
		return 0;
	if (card->mig)
		return !!lab_gi_with_room(card, type, LAB_NOWHERE);
	if (card->mixed)
		return lab_first_placement(card, type) != LAB_NOWHERE;
	if (card->nr_vgpus && card->framebuffer_mib != type->framebuffer_mib)
		return 0;
	if (card->nr_vgpus >= type->max_instance)
		return 0;
	return type->max_instance - card->nr_vgpus;
}

static void lab_enter(struct lab_vgpu_slot *slot, struct lab_gi *gi)
{
	slot->gi = gi;
	gi->nr_vgpus++;
	gi->framebuffer_mib = slot->type->framebuffer_mib;
}

struct lab_vgpu_slot *lab_take(struct lab_card *card,
			       const struct lab_type *type)
{
	static atomic_t instances = ATOMIC_INIT(0);
	struct lab_vgpu_slot *slot = card->vgpus;

	if (!lab_room(card, type)) {
		pci_info(card->pdev, "no room for %s beside %u vGPUs of %llu MiB\n",
			 type->name, card->nr_vgpus, card->framebuffer_mib);
		return ERR_PTR(-EIO);
	}
	while (slot->type)
		slot++;
	*slot = (struct lab_vgpu_slot) {
		.type = type,
		.instance = atomic_inc_return(&instances),
		.placement = card->mixed ? lab_first_placement(card, type) :
					   LAB_NO_PLACEMENT,
	};
	if (card->mig)
		lab_enter(slot, lab_gi_with_room(card, type, LAB_NOWHERE));
	guid_gen(&slot->uuid);
	card->framebuffer_mib = type->framebuffer_mib;
	card->nr_vgpus++;
	return slot;
}

void lab_give(struct lab_card *card, struct lab_vgpu_slot *slot)
{
	lockdep_assert_held(&card->lock);

	if (WARN_ON(!card->nr_vgpus || !slot->type))
		return;
	slot->type = NULL;
	if (slot->gi)
		slot->gi->nr_vgpus--;
	if (!--card->nr_vgpus)
		card->framebuffer_mib = 0;
}

/* Another place for a vGPU, on a card of mixed sizes. */
int lab_move(struct lab_card *card, struct lab_vgpu_slot *slot,
	     unsigned int placement)
{
	lockdep_assert_held(&card->lock);

	if (!card->mixed ||
	    !lab_placement_fits(card, slot->type, placement, slot))
		return -EIO;
	slot->placement = placement;
	return 0;
}

/* Another GPU instance for a vGPU; its own is no change. */
int lab_move_gi(struct lab_card *card, struct lab_vgpu_slot *slot,
		unsigned int id)
{
	struct lab_gi *gi;

	lockdep_assert_held(&card->lock);

	if (slot->gi && slot->gi->id == id)
		return 0;
	gi = slot->gi ? lab_gi_with_room(card, slot->type, id) : NULL;
	if (!gi)
		return -EIO;
	slot->gi->nr_vgpus--;
	lab_enter(slot, gi);
	return 0;
}

/*
 * Replace the plugin parameters. A write of blanks clears them, which is how
 * people clear the real file.
 */
int lab_set_params(char *params, const char *buf, size_t count)
{
	const char *start = skip_spaces(buf);
	size_t len;

	if (count >= LAB_PARAMS_MAX)
		return -E2BIG;
	len = strlen(start);
	while (len && isspace(start[len - 1]))
		len--;
	memcpy(params, start, len);
	params[len] = '\0';
	return 0;
}
