/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vgpulab - emulated SR-IOV functions that look like NVIDIA vGPU cards.
 *
 * The words that the files share. A card is one physical function that
 * was named on the command line; it outlives the binding of the function to
 * our driver, so that unbinding the function, enabling VFs through another
 * driver and binding it again (what sriov-manage does) works.
 */
#ifndef VGPULAB_H
#define VGPULAB_H

#include <linux/mdev.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/seq_file.h>
#include <linux/types.h>
#include <linux/uuid.h>
#include <linux/version.h>
#include <linux/vfio_pci_core.h>

#define LAB_DRIVER_NAME		"nvidia"
#define LAB_CLASS		0x030200	/* 3D controller */
#define LAB_REVISION		0xa1
#define LAB_SUBDEVICE		0x145f
#define LAB_PARAMS_MAX		1024
#define LAB_MAX_TYPES		16
#define LAB_MAX_VGPUS		48	/* the most that any type has */
#define LAB_MAX_PLACEMENTS	48
#define LAB_MAX_GIS		8
#define LAB_MAX_CIS		7

/* NVML's words for none: of a GPU instance profile, and in our own files */
#define LAB_NO_PROFILE		0xffffffffu
#define LAB_NOWHERE		0xffffffffu
#define LAB_NO_PLACEMENT	0xffffu		/* of a vGPU outside mixed size */

/* NVML's numbers */
enum { LAB_AMPERE = 7, LAB_BLACKWELL = 10 };
enum { LAB_BEST_EFFORT = 1, LAB_EQUAL_SHARE, LAB_FIXED_SHARE };

enum lab_form {
	LAB_MDEV_PF,	/* mdevs on the physical function */
	LAB_MDEV_VF,	/* one mdev on each virtual function */
	LAB_VENDOR_VF,	/* the virtual function is the vGPU */
};

struct lab_type {
	unsigned int id;
	const char *id_text;
	const char *name;
	unsigned long long framebuffer_mib;
	unsigned int max_instance;
	unsigned int gi_profile;	/* LAB_NO_PROFILE: time-sliced */
	unsigned int max_per_gi;
};

/* A GPU instance profile: `index` is NVML's enum, `span` in memory slices. */
struct lab_gi_profile {
	unsigned int id, index;
	const char *name;
	unsigned int slices, memory_mib, max_instance, span;
	unsigned int nr_starts;
	u8 starts[8];
};

/* How vGPUs share a card or a GPU instance, in NVML's numbers. */
struct lab_scheduler {
	unsigned int policy;		/* 1 best effort, 2 equal, 3 fixed share */
	unsigned int mode;		/* 1 strict slices, 2 adaptive; 0 with best effort */
	unsigned int factor;		/* of averaging, 0 with strict slices */
	unsigned int slice_ns;
};

/* A GPU instance; free while `profile` is NULL. */
struct lab_gi {
	const struct lab_gi_profile *profile;
	unsigned int id, start;
	unsigned int nr_vgpus;
	unsigned long long framebuffer_mib;	/* of every vGPU in it */
	struct lab_scheduler scheduler;	/* Blackwell alone has one for each */
	u8 cis[LAB_MAX_CIS];		/* slices of each compute instance, 0 = none */
};

/* What a card is. */
struct lab_model {
	const char *word, *name;
	unsigned short device;
	unsigned int architecture, memory_mib;
	unsigned int slices;		/* of its memory, for GPU instances */
	const struct lab_type *types;
	unsigned int nr_types, nr_time_sliced;
	const struct lab_gi_profile *profiles;
	unsigned int nr_profiles;
};

struct lab_ids {
	unsigned short vendor, device, subvendor, subdevice;
	unsigned int class;
	u8 revision;
};

struct lab_parent;

/* One vGPU; free while `type` is NULL. */
struct lab_vgpu_slot {
	const struct lab_type *type;
	unsigned int instance;		/* NVML's name for it, never given twice */
	guid_t uuid;
	pid_t user;			/* who has it open, 0 = nobody */
	unsigned int placement;		/* LAB_NO_PLACEMENT outside mixed size */
	struct lab_gi *gi;		/* NULL without MIG */
};

struct proc_dir_entry;

struct lab_card {
	struct pci_dev *pdev;
	enum lab_form form;
	const struct lab_model *model;
	unsigned int nr_types;		/* of the model's, in this form */
	struct lab_ids real;		/* what the hardware calls itself */
	unsigned short device;		/* what we call it */
	int vfs_at_load;
	bool relabelled;
	struct lab_parent *parent;	/* LAB_MDEV_PF, while bound */
	struct proc_dir_entry *proc;	/* while bound */
	bool unbind_lock;

	/* guards everything below, and the state of the card's VFs */
	struct mutex lock;
	unsigned int nr_vgpus;
	unsigned long long framebuffer_mib;	/* of every vGPU on the card */
	struct lab_vgpu_slot vgpus[LAB_MAX_VGPUS];
	struct lab_scheduler scheduler;
	bool mig, mig_pending;
	struct lab_gi gis[LAB_MAX_GIS];
	bool mixed;
};

/* main.c: the driver takes the card, or resets it; needs card->lock */
void lab_begin(struct lab_card *card);
int lab_reset(struct lab_card *card, const char *text);

/* model.c: which card it is */
const struct lab_model *lab_find_model(const char *word);

/* types.c: what a card can carry; all but lab_set_params need card->lock */
const struct lab_type *lab_find_type(const struct lab_card *card,
				     unsigned int id);
unsigned int lab_room(struct lab_card *card, const struct lab_type *type);
struct lab_vgpu_slot *lab_take(struct lab_card *card,
			       const struct lab_type *type);
void lab_give(struct lab_card *card, struct lab_vgpu_slot *slot);
int lab_move(struct lab_card *card, struct lab_vgpu_slot *slot,
	     unsigned int placement);
int lab_move_gi(struct lab_card *card, struct lab_vgpu_slot *slot,
		unsigned int id);
int lab_set_params(char *params, const char *buf, size_t count);

/* mixed.c: vGPUs of several sizes */
unsigned int lab_placement_size(const struct lab_model *model,
				const struct lab_type *type);
unsigned int lab_placements(const struct lab_model *model,
			    const struct lab_type *type, unsigned int *ids);
bool lab_placement_fits(const struct lab_card *card,
			const struct lab_type *type, unsigned int id,
			const struct lab_vgpu_slot *self);
unsigned int lab_first_placement(const struct lab_card *card,
				 const struct lab_type *type);
int lab_mixed_set(struct lab_card *card, const char *text);
void lab_mixed_show(struct seq_file *out, const struct lab_card *card);

/* mig.c: MIG's mode and instances */
bool lab_has_mig(const struct lab_card *card);
void lab_mig_begin(struct lab_card *card);
int lab_mig_set(struct lab_card *card, const char *text);
struct lab_gi *lab_gi_by_id(struct lab_card *card, unsigned int id);
int lab_gi_make(struct lab_card *card, const char *text);
int lab_gi_drop(struct lab_card *card, const char *text);
struct lab_gi *lab_gi_with_room(struct lab_card *card,
				const struct lab_type *type, unsigned int id);
int lab_ci_make(struct lab_card *card, const char *text);
int lab_ci_drop(struct lab_card *card, const char *text);
void lab_mig_show(struct seq_file *out, const struct lab_card *card);

/* mdev.c: the two mdev forms; `single` = at most one vGPU on this function */
int lab_mdev_init(void);
void lab_mdev_exit(void);
struct lab_parent *lab_parent_add(struct lab_card *card, struct pci_dev *pdev,
				  bool single);
void lab_parent_del(struct lab_parent *parent);

/* vgpu.c: the emulated device behind an mdev; drvdata of `dev` is its own */
struct lab_vgpu;
extern const struct attribute_group *lab_vgpu_groups[];
struct lab_vgpu *lab_vgpu_make(struct device *dev, unsigned short device,
			       struct lab_card *card,
			       struct lab_vgpu_slot *slot);
struct lab_vgpu_slot *lab_vgpu_slot(struct lab_vgpu *vgpu);
void lab_vgpu_destroy(struct lab_vgpu *vgpu);

/* vf.c: the vendor-specific VFIO form */
int lab_vf_add(struct lab_card *card, struct pci_dev *pdev);
void lab_vf_del(struct pci_dev *pdev);

/* driver.c: the driver's version, and the words that it was loaded with */
#define LAB_PLACES_SINCE	580	/* the branch: seen with it, not with 550 */
extern char *lab_driver, *lab_words, *lab_words_per_device;
unsigned int lab_branch(void);
u32 lab_registry_word(const char *address, const char *name);

/* scheduler.c: how vGPUs share a card's time */
void lab_scheduler_load(struct lab_card *card);
int lab_scheduler_set(struct lab_card *card, const char *text);
int lab_gi_scheduler_set(struct lab_card *card, const char *text);
void lab_scheduler_show(struct seq_file *out, const struct lab_card *card);

/* proc.c: /proc/driver/nvidia, and /dev/nvidiactl that NVML holds open */
unsigned int lab_nr_clients(void);
int lab_proc_init(void);
void lab_proc_exit(void);
int lab_proc_add(struct lab_card *card);
void lab_proc_del(struct lab_card *card);

#endif /* VGPULAB_H */
