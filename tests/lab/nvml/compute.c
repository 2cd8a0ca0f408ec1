/* SPDX-License-Identifier: Apache-2.0 */
/* Compute instances: the slices of a GPU instance that one program may use. */
#include <stdio.h>

#include "mig.h"

#define SHARED	0	/* the only engine profile */

/* By NVML_COMPUTE_INSTANCE_PROFILE_*, which is also the profile's id here. */
static const u32 slices_of[] = { 1, 2, 3, 4, 7 };
#define PROFILES	(sizeof(slices_of) / sizeof(*slices_of))
#define ALL_PROFILES	9	/* NVML_COMPUTE_INSTANCE_PROFILE_COUNT */

struct profile_info {
	u32 id, slices, instances, multiprocessors, copiers, decoders, encoders,
	    jpeg, ofa;
};

struct profile_info_v2 {
	u32 version;
	struct profile_info info;
	char name[96];
};

_Static_assert(sizeof(struct profile_info_v2) == 136, "as nvml.h has it");

static u32 profile_of(u32 slices)
{
	u32 i = 0;

	while (i < PROFILES && slices_of[i] != slices)
		i++;
	return i;
}

static int read_profile(struct instance *handle, u32 index, u32 engine,
			struct state *now, const struct gi_profile **whole)
{
	const struct gi *gi;
	int ret = read_instance(handle, now, &gi);

	if (ret || index >= ALL_PROFILES || engine != SHARED)
		return ret ? ret : INVALID_ARGUMENT;
	*whole = profile_by_id(now, gi->profile);
	return index < PROFILES && slices_of[index] <= (*whole)->slices ?
	       SUCCESS : NOT_SUPPORTED;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct instance *handle,
						 u32 index, u32 engine,
						 struct profile_info *to)
{
	struct state now;
	const struct gi_profile *whole;
	int ret = read_profile(handle, index, engine, &now, &whole);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	*to = (struct profile_info) {
		.id = index, .slices = slices_of[index],
		.instances = whole->slices / slices_of[index],
	};
	return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct instance *handle,
						  u32 index, u32 engine,
						  struct profile_info_v2 *to)
{
	struct state now;
	const struct gi_profile *whole;
	int ret = read_profile(handle, index, engine, &now, &whole);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct profile_info_v2, 2))
		return ARGUMENT_VERSION_MISMATCH;
	if (slices_of[index] == whole->slices)
		snprintf(to->name, sizeof(to->name), "MIG %s", whole->name);
	else
		snprintf(to->name, sizeof(to->name), "MIG %uc.%s",
			 slices_of[index], whole->name);
	return nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, index,
							    engine, &to->info);
}

static int has_ci(const struct state *now, u32 gi, u32 id)
{
	u32 i;

	for (i = 0; i < now->nr_cis; i++)
		if (now->cis[i].gi == gi && now->cis[i].id == id)
			return 1;
	return 0;
}

int nvmlGpuInstanceCreateComputeInstance(struct instance *handle, u32 profile,
					 struct instance **to)
{
	struct state before, now;
	const struct gi *gi;
	char text[48];
	int ret = read_instance(handle, &before, &gi);
	u32 i;

	if (ret || !to || profile >= PROFILES)
		return ret ? ret : INVALID_ARGUMENT;
	snprintf(text, sizeof(text), "ci %u %u\n", gi->id, slices_of[profile]);
	ret = write_card(handle->card, text);
	if (!ret)
		ret = read_card(handle->card, &now);
	if (ret)
		return ret;
	for (i = 0; i < now.nr_cis; i++) {
		if (now.cis[i].gi == gi->id &&
		    !has_ci(&before, gi->id, now.cis[i].id)) {
			*to = instance_of(handle->card, gi->id, now.cis[i].id);
			return SUCCESS;
		}
	}
	return UNKNOWN;
}

int nvmlGpuInstanceGetComputeInstances(struct instance *handle, u32 profile,
				       struct instance **to, u32 *count)
{
	struct state now;
	const struct gi *gi;
	int ret = read_instance(handle, &now, &gi);
	u32 i;

	if (ret || !to || !count || profile >= PROFILES)
		return ret ? ret : INVALID_ARGUMENT;
	*count = 0;
	for (i = 0; i < now.nr_cis; i++)
		if (now.cis[i].gi == gi->id &&
		    now.cis[i].slices == slices_of[profile])
			to[(*count)++] = instance_of(handle->card, gi->id,
						     now.cis[i].id);
	return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceById(struct instance *handle, u32 id,
					  struct instance **to)
{
	struct state now;
	const struct gi *gi;
	int ret = read_instance(handle, &now, &gi);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (!has_ci(&now, gi->id, id))
		return NOT_FOUND;
	*to = instance_of(handle->card, gi->id, id);
	return SUCCESS;
}

int nvmlComputeInstanceDestroy(struct instance *handle)
{
	struct state now;
	const struct gi *gi;
	char text[48];
	int ret = read_instance(handle, &now, &gi);

	if (ret || !has_ci(&now, handle->gi, handle->ci))
		return ret ? ret : INVALID_ARGUMENT;
	snprintf(text, sizeof(text), "drop_ci %u %u\n", handle->gi, handle->ci);
	return write_card(handle->card, text);
}

struct ci_info {
	struct card *device;
	struct instance *gi;
	u32 id, profile;
	struct placement place;
};

/* Where it is among the others is not kept: they follow each other by their ids. */
int nvmlComputeInstanceGetInfo_v2(struct instance *handle, struct ci_info *to)
{
	struct state now;
	const struct gi *gi;
	int ret = read_instance(handle, &now, &gi);
	u32 start = 0, slices = 0, i;

	if (ret || !to || !has_ci(&now, handle->gi, handle->ci))
		return ret ? ret : INVALID_ARGUMENT;
	for (i = 0; i < now.nr_cis; i++) {
		if (now.cis[i].gi != gi->id || now.cis[i].id > handle->ci)
			continue;
		start += now.cis[i].slices;
		if (now.cis[i].id == handle->ci)
			slices = now.cis[i].slices;
	}
	*to = (struct ci_info) {
		handle->card, instance_of(handle->card, gi->id, NONE),
		handle->ci, profile_of(slices), { start - slices, slices },
	};
	return SUCCESS;
}
