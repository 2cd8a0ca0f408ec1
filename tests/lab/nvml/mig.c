/* SPDX-License-Identifier: Apache-2.0 */
/* MIG: its mode, the profiles of GPU instances, and GPU instances. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "mig.h"

#define MAX_INSTANCES	128
#define PROFILES	0x12	/* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define SM_PER_SLICE	14

#ifdef OLD
#define WITHOUT_MIG	0	/* older drivers have profiles only with MIG on */
#else
#define WITHOUT_MIG	1
#endif

struct instance *instance_of(struct card *card, u32 gi, u32 ci)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct instance instances[MAX_INSTANCES];
	struct instance *found = instances;

	pthread_mutex_lock(&lock);
	while (found < instances + MAX_INSTANCES - 1 && found->card &&
	       (found->card != card || found->gi != gi || found->ci != ci))
		found++;
	*found = (struct instance) { card, gi, ci };
	pthread_mutex_unlock(&lock);
	return found;
}

const struct gi_profile *profile_by_id(const struct state *state, u32 id)
{
	u32 i;

	for (i = 0; i < state->nr_profiles; i++)
		if (state->profiles[i].id == id)
			return &state->profiles[i];
	return 0;
}

static const struct gi *gi_by_id(const struct state *state, u32 id)
{
	u32 i;

	for (i = 0; i < state->nr_gis; i++)
		if (state->gis[i].id == id)
			return &state->gis[i];
	return 0;
}

/* A handle of an instance that is gone is no argument. */
int read_instance(const struct instance *handle, struct state *state,
		  const struct gi **gi)
{
	int ret = handle ? read_card(handle->card, state) : INVALID_ARGUMENT;

	if (ret)
		return ret;
	*gi = gi_by_id(state, handle->gi);
	return *gi ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMigMode(struct card *device, u32 *current, u32 *pending)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !current || !pending)
		return ret ? ret : INVALID_ARGUMENT;
	if (!now.mig[0])
		return NOT_SUPPORTED;
	*current = now.mig[1];
	*pending = now.mig[2];
	return SUCCESS;
}

/* Success is that the mode was taken; whether it is in force already is told beside it. */
int nvmlDeviceSetMigMode(struct card *device, u32 mode, int *activation)
{
	struct state now;
	char text[32];
	int ret = read_card(device, &now);

	if (ret || mode > 1 || !activation)
		return ret ? ret : INVALID_ARGUMENT;
	snprintf(text, sizeof(text), "mig %u\n", mode);
	ret = write_card(device, text);
	if (!ret)
		ret = read_card(device, &now);
	if (ret)
		return ret;
	*activation = now.mig[1] == mode ? SUCCESS : IN_USE;
	return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct card *device, u32 *count)
{
	struct state now;
	int ret = read_card(device, &now);
	u32 i;

	if (ret || !count)
		return ret ? ret : INVALID_ARGUMENT;
	*count = 0;
	for (i = 0; i < now.nr_profiles; i++)
		if (now.profiles[i].max > *count)
			*count = now.profiles[i].max;
	return SUCCESS;
}

/* ------------------------------------------------------------- profiles */

struct profile_info {
	u32 id, p2p, slices, instances, multiprocessors, copiers, decoders,
	    encoders, jpeg, ofa;
	u64 memory_mib;
};

struct profile_info_v2 {
	u32 version, id, p2p, slices, instances, multiprocessors, copiers,
	    decoders, encoders, jpeg, ofa;
	u64 memory_mib;
	char name[96];
};

_Static_assert(sizeof(struct profile_info) == 48, "as nvml.h has it");
_Static_assert(sizeof(struct profile_info_v2) == 152, "as nvml.h has it");

static int read_profiles(struct card *device, struct state *now)
{
	int ret = read_card(device, now);

	if (ret)
		return ret;
	return now->nr_profiles && (now->mig[1] || WITHOUT_MIG) ? SUCCESS :
								  NOT_SUPPORTED;
}

static int find_profile(struct card *device, u32 index, struct state *now,
			const struct gi_profile **found)
{
	int ret = index < PROFILES ? read_profiles(device, now) :
				     INVALID_ARGUMENT;
	u32 i;

	if (ret)
		return ret;
	for (i = 0; i < now->nr_profiles; i++) {
		*found = &now->profiles[i];
		if ((*found)->index == index)
			return SUCCESS;
	}
	return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceProfileInfo(struct card *device, u32 index,
					struct profile_info *to)
{
	struct state now;
	const struct gi_profile *found;
	int ret = find_profile(device, index, &now, &found);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	*to = (struct profile_info) {
		.id = found->id, .slices = found->slices,
		.instances = found->max,
		.multiprocessors = found->slices * SM_PER_SLICE,
		.copiers = found->slices, .memory_mib = found->memory_mib,
	};
	return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(struct card *device, u32 index,
					 struct profile_info_v2 *to)
{
	struct profile_info info;
	struct state now;
	const struct gi_profile *found;
	int ret = find_profile(device, index, &now, &found);

	if (!ret)
		ret = nvmlDeviceGetGpuInstanceProfileInfo(device, index, &info);
	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct profile_info_v2, 2))
		return ARGUMENT_VERSION_MISMATCH;
	*to = (struct profile_info_v2) {
		.version = to->version, .id = info.id, .slices = info.slices,
		.instances = info.instances,
		.multiprocessors = info.multiprocessors,
		.copiers = info.copiers, .memory_mib = info.memory_mib,
	};
	snprintf(to->name, sizeof(to->name), "MIG %s", found->name);
	return SUCCESS;
}

/* All of a profile's, taken or not. */
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct card *device, u32 id,
						  struct placement *to,
						  u32 *count)
{
	struct state now;
	const struct gi_profile *profile;
	int ret = read_profiles(device, &now);
	u32 room, i;

	if (ret || !count)
		return ret ? ret : INVALID_ARGUMENT;
	profile = profile_by_id(&now, id);
	if (!profile)
		return INVALID_ARGUMENT;
	room = *count;
	*count = profile->nr_starts;
	if (!to)
		return SUCCESS;
	if (room < profile->nr_starts)
		return INSUFFICIENT_SIZE;
	for (i = 0; i < profile->nr_starts; i++)
		to[i] = (struct placement) { profile->starts[i], profile->span };
	return SUCCESS;
}

/* ------------------------------------------------------- GPU instances */

int nvmlDeviceGetGpuInstances(struct card *device, u32 id,
			      struct instance **to, u32 *count)
{
	struct state now;
	int ret = read_card(device, &now);
	u32 i;

	if (ret || !to || !count)
		return ret ? ret : INVALID_ARGUMENT;
	if (!now.mig[1])
		return NOT_SUPPORTED;
	if (!profile_by_id(&now, id))
		return INVALID_ARGUMENT;
	*count = 0;
	for (i = 0; i < now.nr_gis; i++)
		if (now.gis[i].profile == id)
			to[(*count)++] = instance_of(device, now.gis[i].id, NONE);
	return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(struct card *device, u32 id,
				 struct instance **to)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (!now.mig[1])
		return NOT_SUPPORTED;
	if (!gi_by_id(&now, id))
		return NOT_FOUND;
	*to = instance_of(device, id, NONE);
	return SUCCESS;
}

/* The new one is the one that was not there before. */
static int make_gi(struct card *device, const char *text, struct instance **to)
{
	struct state before, now;
	int ret = to ? read_card(device, &before) : INVALID_ARGUMENT;
	u32 i;

	if (!ret)
		ret = write_card(device, text);
	if (!ret)
		ret = read_card(device, &now);
	if (ret)
		return ret;
	for (i = 0; i < now.nr_gis; i++) {
		if (!gi_by_id(&before, now.gis[i].id)) {
			*to = instance_of(device, now.gis[i].id, NONE);
			return SUCCESS;
		}
	}
	return UNKNOWN;
}

int nvmlDeviceCreateGpuInstance(struct card *device, u32 profile,
				struct instance **to)
{
	char text[32];

	snprintf(text, sizeof(text), "gi %u\n", profile);
	return make_gi(device, text, to);
}

int nvmlDeviceCreateGpuInstanceWithPlacement(struct card *device, u32 profile,
					     const struct placement *place,
					     struct instance **to)
{
	struct state now;
	const struct gi_profile *known;
	char text[48];
	int ret = read_card(device, &now);

	if (ret || !place)
		return ret ? ret : INVALID_ARGUMENT;
	known = profile_by_id(&now, profile);
	if (known && known->span != place->size)
		return INVALID_ARGUMENT;
	snprintf(text, sizeof(text), "gi %u %u\n", profile, place->start);
	return make_gi(device, text, to);
}

int nvmlGpuInstanceDestroy(struct instance *handle)
{
	struct state now;
	const struct gi *gi;
	char text[32];
	int ret = read_instance(handle, &now, &gi);

	if (ret)
		return ret;
	snprintf(text, sizeof(text), "drop_gi %u\n", gi->id);
	return write_card(handle->card, text);
}

struct gi_info {
	struct card *device;
	u32 id, profile;
	struct placement place;
};

int nvmlGpuInstanceGetInfo(struct instance *handle, struct gi_info *to)
{
	struct state now;
	const struct gi *gi;
	int ret = read_instance(handle, &now, &gi);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	*to = (struct gi_info) {
		handle->card, gi->id, gi->profile,
		{ gi->start, profile_by_id(&now, gi->profile)->span },
	};
	return SUCCESS;
}
