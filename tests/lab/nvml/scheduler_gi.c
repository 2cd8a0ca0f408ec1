/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of a GPU instance, which Blackwell's have. Not in the build for older drivers. */
#include <stdio.h>

#include "mig.h"
#include "scheduler.h"

#define STRICT		1
#define ADAPTIVE	2

/* Both of getting and of setting: of the union {slice} with strict slices, else {factor, slice or Hz}. */
struct v1 {
	u32 version, engine, policy, mode, first, second;
};

struct v2 {
	u32 engine, policy, factor, last;	/* last: slice in ns when read, Hz when set */
};

static int read_gi(struct instance *handle, u32 engine, struct state *now,
		   const struct gi **gi)
{
	int ret = read_instance(handle, now, gi);

	if (ret)
		return ret;
	if (engine != GRAPHICS)
		return INVALID_ARGUMENT;
	return (*gi)->scheduler[0] ? SUCCESS : NOT_SUPPORTED;
}

int nvmlGpuInstanceGetVgpuSchedulerState(struct instance *handle, struct v1 *to)
{
	struct state now;
	const struct gi *gi;
	const u32 *s;
	int ret = to ? read_gi(handle, to->engine, &now, &gi) : INVALID_ARGUMENT;

	if (ret)
		return ret;
	if (to->version != VERSION_OF(struct v1, 1))
		return ARGUMENT_VERSION_MISMATCH;
	s = gi->scheduler;
	to->policy = s[0];
	to->mode = s[1];
	to->first = s[1] == STRICT ? s[3] : s[2];
	to->second = s[1] == STRICT ? 0 : s[3];
	return SUCCESS;
}

int nvmlGpuInstanceGetVgpuSchedulerState_v2(struct instance *handle,
					    struct v2 *to)
{
	struct state now;
	const struct gi *gi;
	int ret = to ? read_gi(handle, to->engine, &now, &gi) : INVALID_ARGUMENT;

	if (ret)
		return ret;
	to->policy = gi->scheduler[0];
	to->factor = gi->scheduler[2];
	to->last = gi->scheduler[3];
	return SUCCESS;
}

static int set(struct instance *handle, u32 engine, u32 policy, u32 mode,
	       u32 factor, u32 hz, u32 slice_ns)
{
	struct state now;
	const struct gi *gi;
	char text[80];
	int ret = read_gi(handle, engine, &now, &gi);

	if (ret)
		return ret;
	snprintf(text, sizeof(text), "gi_scheduler %u %u %u %u %u %u\n", gi->id,
		 policy, mode, factor, hz, slice_ns);
	return write_card(handle->card, text);
}

int nvmlGpuInstanceSetVgpuSchedulerState(struct instance *handle,
					 const struct v1 *to)
{
	if (!to)
		return INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct v1, 1))
		return ARGUMENT_VERSION_MISMATCH;
	if (to->mode == STRICT)
		return set(handle, to->engine, to->policy, STRICT, 0, 0,
			   to->first);
	return set(handle, to->engine, to->policy, to->mode, to->first,
		   to->second, 0);
}

int nvmlGpuInstanceSetVgpuSchedulerState_v2(struct instance *handle,
					    const struct v2 *to)
{
	if (!to)
		return INVALID_ARGUMENT;
	return set(handle, to->engine, to->policy, ADAPTIVE, to->factor,
		   to->last, 0);
}
