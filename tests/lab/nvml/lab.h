/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this library share. The calls themselves are declared
 * where they are defined: nobody includes them, pynvml looks them up by name.
 */
#ifndef LAB_H
#define LAB_H

#define MAX_TYPES	16
#define MAX_VGPUS	48
#define MAX_CARDS	8
#define MAX_PLACES	48
#define MAX_GIS		8
#define MAX_CIS		56
#define NONE		0xFFFFFFFFu	/* of a GPU instance or of its profile */

/* What a struct says of itself. */
#define VERSION_OF(what, number)	((u32)(sizeof(what) | (number) << 24))

#ifdef OLD
#define NO_V2	1	/* of placement lists */
#else
#define NO_V2	0
#endif

/* nvmlReturn_t, the numbers that are answered here */
enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	GPU_IS_LOST = 15,
	LIB_RM_VERSION_MISMATCH = 18,
	IN_USE = 19,
	INSUFFICIENT_RESOURCES = 23,
	ARGUMENT_VERSION_MISMATCH = 25,
	UNKNOWN = 999,
};

typedef unsigned int u32;
typedef unsigned long long u64;

struct type {
	u32 id, max, creatable;
	u64 framebuffer_mib;
	u32 gi_profile, max_per_gi;	/* NONE: time-sliced */
	u32 size, nr_places;		/* on a GPU of mixed sizes */
	u32 places[MAX_PLACES], place_fits[MAX_PLACES];
	char name[64];
};

struct vgpu {
	u32 instance, type;
	int user;		/* the process that has it open, 0 = nobody */
	char uuid[37];
	u32 placement, gi;
};

/* A GPU instance's profile: `index` is NVML's enum, `span` in memory slices. */
struct gi_profile {
	u32 id, index, slices, max, span, nr_starts, starts[8];
	u64 memory_mib;
	char name[32];
};

struct gi {
	u32 id, profile, start;
	u32 scheduler[4];	/* policy 0: it has none of its own */
};

struct ci {
	u32 gi, id, slices;
};

/* nvmlDevice_t points to one; it says where the card is, and never what it is now. */
struct card {
	char address[16];	/* as the kernel writes it */
};

/* A card at one moment. */
struct state {
	char model[64];
	u64 memory_mib;
	int sriov;
	u32 architecture;
	u32 mig[3];		/* has it, is on, will be on */
	u32 mixed[2];		/* has it, is on */
	u32 limits[7];		/* slice, Hz, factor: least and most; adaptive or not */
	u32 scheduler[4];	/* policy, mode, factor, slice in ns */
	u32 nr_types, nr_vgpus;
	struct type types[MAX_TYPES];
	struct vgpu vgpus[MAX_VGPUS];
	u32 nr_profiles, nr_gis, nr_cis;
	struct gi_profile profiles[MAX_GIS];
	struct gi gis[MAX_GIS];
	struct ci cis[MAX_CIS];
};

/* library.c */
int opened(void);

/* card.c: 0 or a number of NVML's */
int find_card(const char *bus_id, struct card **found);
int each_card(int (*look)(const struct card *, const struct state *, void *),
	      void *what);
int read_card(const struct card *card, struct state *state);
int write_card(const struct card *card, const char *text);
int driver_version(char *text, u32 size);

/* types.c */
const struct type *type_in(const struct state *now, u32 id);
int find_type(u32 id, struct type *type);

/* Copies a text into a caller's buffer. */
int give_text(const char *text, char *to, u32 size);
/* Answers calls that are asked twice: how many there are, and which. */
int give_list(const u32 *list, u32 number, u32 *count, u32 *to);

#endif
