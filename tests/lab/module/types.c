// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a card can carry, and how much of it is left.
 *
 * Every form asks the same three questions (is there room, take it, give it
 * back), so that the placement rules of time-sliced same-size vGPUs are
 * stated once: an empty card offers every type, the first vGPU fixes the
 * framebuffer size of all others, and a type's max_instance caps the card.
 */
#include <linux/atomic.h>
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/string.h>

#include "vgpulab.h"

/* The time-sliced C series of an A100 PCIe 40GB (vgpu-types.csv). */
const struct lab_type lab_types[LAB_NR_TYPES] = {
	{ 468, "468", "GRID A100-4C",   4096, 10 },
	{ 469, "469", "GRID A100-5C",   5120,  8 },
	{ 470, "470", "GRID A100-8C",   8192,  5 },
	{ 471, "471", "GRID A100-10C", 10240,  4 },
	{ 472, "472", "GRID A100-20C", 20480,  2 },
	{ 473, "473", "GRID A100-40C", 40960,  1 },
};

const struct lab_type *lab_find_type(unsigned int id)
{
	int i;

	for (i = 0; i < LAB_NR_TYPES; i++)
		if (lab_types[i].id == id)
			return &lab_types[i];
	return NULL;
}

/* How many more vGPUs of this type the card takes now. */
unsigned int lab_room(const struct lab_card *card, const struct lab_type *type)
{
	lockdep_assert_held(&card->lock);

	if (card->nr_vgpus && card->framebuffer_mib != type->framebuffer_mib)
		return 0;
	if (card->nr_vgpus >= type->max_instance)
		return 0;
	return type->max_instance - card->nr_vgpus;
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
	};
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
	if (!--card->nr_vgpus)
		card->framebuffer_mib = 0;
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
