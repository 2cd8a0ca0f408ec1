/* SPDX-License-Identifier: Apache-2.0 */
/* MIG's handles: an instance by its number, and never what it is now. */
#ifndef MIG_H
#define MIG_H

#include "lab.h"

struct instance {
	struct card *card;
	u32 gi;
	u32 ci;			/* NONE: it is the GPU instance */
};

struct placement {
	u32 start, size;
};

/* The same pointer for the same instance, for as long as the process lives. */
struct instance *instance_of(struct card *card, u32 gi, u32 ci);
/* Reads the card of a handle and finds its GPU instance there. */
int read_instance(const struct instance *handle, struct state *state,
		  const struct gi **gi);
const struct gi_profile *profile_by_id(const struct state *state, u32 id);

#endif
