/* SPDX-License-Identifier: Apache-2.0 */
/* vGPU types: those a GPU has, those that fit now, and what each is. */
#include "lab.h"

#define MAX_PER_VM	16	/* of these types; NVML's MAX_VGPU_DEVICES_PER_VM */

static int give_types(struct card *device, int all, u32 *count, u32 *ids)
{
	struct state now;
	u32 list[MAX_TYPES], n = 0, i;
	int ret = read_card(device, &now);

	if (ret)
		return ret;
	for (i = 0; i < now.nr_types; i++)
		if (all || now.types[i].creatable)
			list[n++] = now.types[i].id;
	return give_list(list, n, count, ids);
}

int nvmlDeviceGetSupportedVgpus(struct card *device, u32 *count, u32 *ids)
{
	return give_types(device, 1, count, ids);
}

int nvmlDeviceGetCreatableVgpus(struct card *device, u32 *count, u32 *ids)
{
	return give_types(device, 0, count, ids);
}

const struct type *type_in(const struct state *now, u32 id)
{
	u32 i;

	for (i = 0; i < now->nr_types; i++)
		if (now->types[i].id == id)
			return &now->types[i];
	return 0;
}

static int copy_type(const struct card *card, const struct state *now, void *to)
{
	struct type *wanted = to;
	const struct type *found = type_in(now, wanted->id);

	(void)card;
	if (found)
		*wanted = *found;
	return found != 0;
}

/* A type is asked for without a GPU: one that no GPU here has is no argument. */
int find_type(u32 id, struct type *type)
{
	type->id = id;
	if (!opened())
		return UNINITIALIZED;
	return each_card(copy_type, type) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlVgpuTypeGetName(u32 id, char *name, u32 *size)
{
	struct type type;
	int ret = find_type(id, &type);

	if (ret || !size)
		return ret ? ret : INVALID_ARGUMENT;
	return give_text(type.name, name, *size);
}

int nvmlVgpuTypeGetClass(u32 id, char *name, u32 *size)
{
	struct type type;
	int ret = find_type(id, &type);

	if (ret || !size)
		return ret ? ret : INVALID_ARGUMENT;
	return give_text("Compute", name, *size);
}

int nvmlVgpuTypeGetFramebufferSize(u32 id, u64 *bytes)
{
	struct type type;
	int ret = find_type(id, &type);

	if (ret || !bytes)
		return ret ? ret : INVALID_ARGUMENT;
	*bytes = type.framebuffer_mib << 20;
	return SUCCESS;
}

int nvmlVgpuTypeGetMaxInstances(struct card *device, u32 id, u32 *number)
{
	struct state now;
	const struct type *type;
	int ret = read_card(device, &now);

	if (ret)
		return ret;
	type = type_in(&now, id);
	if (!type || !number)
		return INVALID_ARGUMENT;
	*number = type->max;
	return SUCCESS;
}

int nvmlVgpuTypeGetMaxInstancesPerVm(u32 id, u32 *number)
{
	struct type type;
	int ret = find_type(id, &type);

	if (ret || !number)
		return ret ? ret : INVALID_ARGUMENT;
	*number = MAX_PER_VM;
	return SUCCESS;
}

/* NONE for a time-sliced one. */
int nvmlVgpuTypeGetGpuInstanceProfileId(u32 id, u32 *profile)
{
	struct type type;
	int ret = find_type(id, &type);

	if (ret || !profile)
		return ret ? ret : INVALID_ARGUMENT;
	*profile = type.gi_profile;
	return SUCCESS;
}
