/* SPDX-License-Identifier: Apache-2.0 */
/* vGPU types: calls that the build for older drivers lacks. */
#include "lab.h"

struct maximum {
	u32 version, type, number;
};

/* A time-sliced type is in no GPU instance. */
int nvmlVgpuTypeGetMaxInstancesPerGpuInstance(struct maximum *to)
{
	struct type type;
	int ret = to ? find_type(to->type, &type) : INVALID_ARGUMENT;

	if (ret)
		return ret;
	if (to->version != VERSION_OF(struct maximum, 1))
		return ARGUMENT_VERSION_MISMATCH;
	if (type.gi_profile == NONE)
		return NOT_SUPPORTED;
	to->number = type.max_per_gi;
	return SUCCESS;
}
