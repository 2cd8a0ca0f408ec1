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
#define LAB_NR_TYPES		6
#define LAB_MAX_VGPUS		16	/* more than any type has */

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
};

/* How the vGPUs share the card, in NVML's numbers. */
struct lab_scheduler {
	unsigned int policy;		/* 1 best effort, 2 equal, 3 fixed share */
	unsigned int mode;		/* 1 strict slices, 2 adaptive; 0 with best effort */
	unsigned int factor;		/* of averaging, 0 with strict slices */
	unsigned int slice_ns;
};

struct proc_dir_entry;

struct lab_card {
	struct pci_dev *pdev;
	enum lab_form form;
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
};

/* types.c: what a card can carry; all but the table need card->lock */
extern const struct lab_type lab_types[LAB_NR_TYPES];
const struct lab_type *lab_find_type(unsigned int id);
unsigned int lab_room(const struct lab_card *card, const struct lab_type *type);
struct lab_vgpu_slot *lab_take(struct lab_card *card,
			       const struct lab_type *type);
void lab_give(struct lab_card *card, struct lab_vgpu_slot *slot);
int lab_set_params(char *params, const char *buf, size_t count);

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
			       struct lab_vgpu_slot *slot);
struct lab_vgpu_slot *lab_vgpu_slot(struct lab_vgpu *vgpu);
void lab_vgpu_destroy(struct lab_vgpu *vgpu);

/* vf.c: the vendor-specific VFIO form */
int lab_vf_add(struct lab_card *card, struct pci_dev *pdev);
void lab_vf_del(struct pci_dev *pdev);

/* driver.c: the driver's version, and the words that it was loaded with */
extern char *lab_driver, *lab_words, *lab_words_per_device;
unsigned int lab_branch(void);
u32 lab_registry_word(const char *address, const char *name);

/* scheduler.c: how vGPUs share a card's time */
void lab_scheduler_load(struct lab_card *card);
int lab_scheduler_set(struct lab_card *card, const char *text);
void lab_scheduler_show(struct seq_file *out, const struct lab_card *card);

/* proc.c: /proc/driver/nvidia, and /dev/nvidiactl that NVML holds open */
int lab_proc_init(void);
void lab_proc_exit(void);
int lab_proc_add(struct lab_card *card);
void lab_proc_del(struct lab_card *card);

#endif /* VGPULAB_H */
