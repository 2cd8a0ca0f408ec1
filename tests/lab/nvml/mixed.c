/* SPDX-License-Identifier: Apache-2.0 */
/* vGPUs of several sizes on a GPU (NVML: heterogeneous mode), and where they are. */
#include <stdio.h>

#include "lab.h"

#define ADA		8
#define BLACKWELL	10
#define SAME_SIZE	1	/* of a placement list's mode; 0 is mixed: not as in the mode's own call */
#define CAPABILITIES	12

struct mode {
	u32 version, mode;
};

static int read_mode(struct card *device, const struct mode *mode,
		     struct state *now)
{
	int ret = read_card(device, now);

	if (ret || !mode)
		return ret ? ret : INVALID_ARGUMENT;
	if (mode->version != VERSION_OF(struct mode, 1))
		return ARGUMENT_VERSION_MISMATCH;
	return now->mixed[0] && !now->mig[1] ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetVgpuHeterogeneousMode(struct card *device, struct mode *mode)
{
	struct state now;
	int ret = read_mode(device, mode, &now);

	if (!ret)
		mode->mode = now.mixed[1];
	return ret;
}

int nvmlDeviceSetVgpuHeterogeneousMode(struct card *device,
				       const struct mode *mode)
{
	struct state now;
	char text[32];
	int ret = read_mode(device, mode, &now);

	if (ret)
		return ret;
	snprintf(text, sizeof(text), "mixed %u\n", mode->mode);
	return write_card(device, text);
}

struct list {
	u32 version, size, count;
	u32 *ids;
};

struct list_v2 {
	u32 version, size, count;
	u32 *ids;
	u32 mode;
};

_Static_assert(sizeof(struct list) == 24, "as nvml.h has it");
_Static_assert(sizeof(struct list_v2) == 32, "as nvml.h has it");

/* Version 2 says how much room its caller has; version 1 only hears how many they are. */
static int give_places(struct list_v2 *to, u32 size, const u32 *ids, u32 number)
{
	u32 room = to->count, i;

	to->size = size;
	to->count = number;
	if (to->version == VERSION_OF(struct list_v2, 2) && room < number)
		return INSUFFICIENT_SIZE;
	for (i = 0; i < number; i++)
		to->ids[i] = ids[i];
	return SUCCESS;
}

static int read_places(struct card *device, u32 id, const struct list_v2 *to,
		       struct state *now, const struct type **type)
{
	int ret = read_card(device, now);

	if (ret || !to || !to->ids)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct list, 1) &&
	    (NO_V2 || to->version != VERSION_OF(struct list_v2, 2)))
		return ARGUMENT_VERSION_MISMATCH;
	*type = type_in(now, id);
	if (!*type)
		return INVALID_ARGUMENT;
	return now->mixed[0] && !now->mig[1] && (*type)->nr_places ?
	       SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetVgpuTypeSupportedPlacements(struct card *device, u32 id,
					     struct list_v2 *to)
{
	u32 ids[MAX_PLACES], i;
	struct state now;
	const struct type *type;
	int ret = read_places(device, id, to, &now, &type);

	if (ret)
		return ret;
	if (to->version != VERSION_OF(struct list_v2, 2) || to->mode != SAME_SIZE)
		return give_places(to, type->size, type->places, type->nr_places);
	if (now.architecture < ADA)
		return NOT_SUPPORTED;
	for (i = 0; i < type->max; i++)
		ids[i] = i * type->size;
	return give_places(to, type->size, ids, type->max);
}

int nvmlDeviceGetVgpuTypeCreatablePlacements(struct card *device, u32 id,
					     struct list_v2 *to)
{
	u32 ids[MAX_PLACES], n = 0, i;
	struct state now;
	const struct type *type;
	int ret = read_places(device, id, to, &now, &type);

	if (ret)
		return ret;
	if (!now.mixed[1])
		return NOT_SUPPORTED;
	for (i = 0; i < type->nr_places; i++)
		if (type->place_fits[i])
			ids[n++] = type->places[i];
	return give_places(to, type->size, ids, n);
}

/* What is not 1 for all of these cards: 2 mixed sizes, 3 to 5 what a move reads and writes in MB/s, and while the VM runs; 9 places in the same size, 10 and 11 time slices with MIG. */
int nvmlDeviceGetVgpuCapabilities(struct card *device, u32 capability, u32 *to)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !to || capability >= CAPABILITIES)
		return ret ? ret : INVALID_ARGUMENT;
	switch (capability) {
	case 0: *to = 1; break;
	case 1:
	case 2: *to = now.mixed[0]; break;
	case 3: *to = 6000; break;
	case 4: *to = 4000; break;
	case 5: *to = 1; break;
	case 9: *to = now.architecture >= ADA; break;
	case 10:
	case 11: *to = now.architecture >= BLACKWELL; break;
	default: *to = 0;
	}
	return SUCCESS;
}

/* 0 is several vGPUs of different types in one VM. */
int nvmlGetVgpuDriverCapabilities(u32 capability, u32 *to)
{
	if (!opened())
		return UNINITIALIZED;
	if (!to || capability > 1)
		return INVALID_ARGUMENT;
	*to = capability == 0;
	return SUCCESS;
}
