/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what the module shows of a card in PROC/gpus/ADDRESS/vgpulab, and
 * writes there. Nothing is kept from one call to the next: what another
 * process set is seen at once, and a card that was unbound is lost.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lab.h"

static struct card cards[MAX_CARDS];

int give_text(const char *text, char *to, u32 size)
{
	if (!to)
		return INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(to, text);
	return SUCCESS;
}

int give_list(const u32 *list, u32 number, u32 *count, u32 *to)
{
	u32 room = count ? *count : 0;

	if (!count)
		return INVALID_ARGUMENT;
	*count = number;
	if (number && (!to || room < number))
		return INSUFFICIENT_SIZE;
	if (number)
		memcpy(to, list, number * sizeof(*list));
	return SUCCESS;
}

int driver_version(char *text, u32 size)
{
	FILE *file = fopen(PROC "/version", "r");
	char version[80] = "";

	if (!file)
		return DRIVER_NOT_LOADED;
	if (fscanf(file, "%*[^0-9]86_64 Kernel Module %79s", version) != 1)
		version[0] = '\0';
	fclose(file);
	return version[0] ? give_text(version, text, size) : UNKNOWN;
}

/* Numbers to the end of a line; returns how many. One with a + behind it is marked. */
static u32 take_numbers(const char *text, u32 *to, u32 *marks, u32 room)
{
	u32 n = 0;
	int length;

	while (n < room && sscanf(text, "%u%n", &to[n], &length) == 1) {
		text += length;
		if (marks)
			marks[n] = *text == '+';
		text += *text == '+';
		n++;
	}
	return n;
}

static void take_scheduler(struct gi *gi, const char *line)
{
	u32 *s = gi->scheduler;

	sscanf(line, "gi_scheduler %*u %u %u %u %u", s, s + 1, s + 2, s + 3);
}

static void take_mig_line(struct state *state, const char *line)
{
	struct gi_profile *profile = &state->profiles[state->nr_profiles];
	struct gi *gi = &state->gis[state->nr_gis];
	struct ci *ci = &state->cis[state->nr_cis];
	int length = 0;

	sscanf(line, "mig %u %u %u", state->mig, state->mig + 1, state->mig + 2);
	if (state->nr_profiles < MAX_GIS &&
	    sscanf(line, "gi_profile %u %u %u %llu %u %u %31s%n", &profile->id,
		   &profile->index, &profile->slices, &profile->memory_mib,
		   &profile->max, &profile->span, profile->name, &length) == 7) {
		profile->nr_starts = take_numbers(line + length, profile->starts,
						  0, 8);
		state->nr_profiles++;
	}
	if (state->nr_gis < MAX_GIS &&
	    sscanf(line, "gi %u %u %u", &gi->id, &gi->profile, &gi->start) == 3)
		state->nr_gis++;
	if (state->nr_gis)	/* its line follows its instance's */
		take_scheduler(&state->gis[state->nr_gis - 1], line);
	if (state->nr_cis < MAX_CIS &&
	    sscanf(line, "ci %u %u %u", &ci->gi, &ci->id, &ci->slices) == 3)
		state->nr_cis++;
}

/* Comes after the lines of the types. */
static void take_places(struct state *state, const char *line)
{
	struct type *type;
	u32 id, size, i;
	int length;

	if (sscanf(line, "places %u %u%n", &id, &size, &length) != 2)
		return;
	for (i = 0; i < state->nr_types; i++) {
		type = &state->types[i];
		if (type->id != id)
			continue;
		type->size = size;
		type->nr_places = take_numbers(line + length, type->places,
					       type->place_fits, MAX_PLACES);
	}
}

/* One line of the module's, by its first word. */
static void take_line(struct state *state, const char *line)
{
	struct type *type = &state->types[state->nr_types];
	struct vgpu *vgpu = &state->vgpus[state->nr_vgpus];
	u32 *n = state->limits, *s = state->scheduler;

	sscanf(line, "model %63[^\n]", state->model);
	sscanf(line, "memory_mib %llu", &state->memory_mib);
	sscanf(line, "sriov %d", &state->sriov);
	sscanf(line, "architecture %u", &state->architecture);
	sscanf(line, "mixed %u %u", state->mixed, state->mixed + 1);
	take_mig_line(state, line);
	take_places(state, line);
	sscanf(line, "limits %u %u %u %u %u %u %u", n, n + 1, n + 2, n + 3,
	       n + 4, n + 5, n + 6);
	sscanf(line, "scheduler %u %u %u %u", s, s + 1, s + 2, s + 3);
	if (state->nr_types < MAX_TYPES &&
	    sscanf(line, "type %u %llu %u %u %u %u %63[^\n]", &type->id,
		   &type->framebuffer_mib, &type->max, &type->creatable,
		   &type->gi_profile, &type->max_per_gi, type->name) == 7)
		state->nr_types++;
	if (state->nr_vgpus < MAX_VGPUS &&
	    sscanf(line, "vgpu %u %u %36s %d %u %u", &vgpu->instance, &vgpu->type,
		   vgpu->uuid, &vgpu->user, &vgpu->placement, &vgpu->gi) == 6)
		state->nr_vgpus++;
}

static void path_of(const struct card *card, char *path, size_t size)
{
	snprintf(path, size, PROC "/gpus/%s/vgpulab", card->address);
}

int read_card(const struct card *card, struct state *state)
{
	char path[128], line[512];
	FILE *file;

	if (!opened())
		return UNINITIALIZED;
	if (!card)
		return INVALID_ARGUMENT;
	path_of(card, path, sizeof(path));
	file = fopen(path, "r");
	if (!file)
		return GPU_IS_LOST;
	memset(state, 0, sizeof(*state));
	while (fgets(line, sizeof(line), file))
		take_line(state, line);
	fclose(file);
	return state->nr_types ? SUCCESS : UNKNOWN;
}

int write_card(const struct card *card, const char *text)
{
	char path[128];
	int file, done;

	path_of(card, path, sizeof(path));
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return errno == EACCES ? NO_PERMISSION : GPU_IS_LOST;
	done = write(file, text, strlen(text)) < 0 ? errno : 0;
	close(file);
	switch (done) {
	case 0: return SUCCESS;
	case EINVAL: return INVALID_ARGUMENT;
	case EOPNOTSUPP: return NOT_SUPPORTED;
	case EBUSY: return IN_USE;
	case ENOSPC: return INSUFFICIENT_RESOURCES;
	case ENOENT: return NOT_FOUND;
	default: return UNKNOWN;
	}
}

/* The same pointer for the same card, for as long as the process lives. */
static struct card *card_at(const char *address)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct card *card = cards;

	pthread_mutex_lock(&lock);
	while (card < cards + MAX_CARDS - 1 && card->address[0] &&
	       strcmp(card->address, address))
		card++;
	snprintf(card->address, sizeof(card->address), "%s", address);
	pthread_mutex_unlock(&lock);
	return card;
}

/* NVML's own spelling has eight digits of domain; it takes others too. */
int find_card(const char *bus_id, struct card **found)
{
	u32 domain, bus, slot, function;
	char address[16];
	struct state now;
	struct card *card;

	if (!opened())
		return UNINITIALIZED;
	if (!bus_id || !found ||
	    sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return INVALID_ARGUMENT;
	snprintf(address, sizeof(address), "%04x:%02x:%02x.%x", domain & 0xffff,
		 bus & 0xff, slot & 0x1f, function & 7);
	card = card_at(address);
	if (read_card(card, &now) != SUCCESS)
		return NOT_FOUND;
	*found = card;
	return SUCCESS;
}

int each_card(int (*look)(const struct card *, const struct state *, void *),
	      void *what)
{
	DIR *folder = opendir(PROC "/gpus");
	struct dirent *entry;
	struct state now;
	struct card card;
	int found = 0;

	while (folder && !found && (entry = readdir(folder))) {
		snprintf(card.address, sizeof(card.address), "%.15s", entry->d_name);
		if (isxdigit((unsigned char)entry->d_name[0]) &&
		    read_card(&card, &now) == SUCCESS)
			found = look(&card, &now, what);
	}
	if (folder)
		closedir(folder);
	return found;
}
