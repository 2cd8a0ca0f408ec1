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
#include <linux/types.h>
#include <linux/version.h>
#include <linux/vfio_pci_core.h>

#define LAB_DRIVER_NAME		"nvidia"
#define LAB_CLASS		0x030200	/* 3D controller */
#define LAB_REVISION		0xa1
#define LAB_SUBDEVICE		0x145f
#define LAB_PARAMS_MAX		1024
#define LAB_NR_TYPES		6

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

struct lab_card {
	struct pci_dev *pdev;
	enum lab_form form;
	struct lab_ids real;		/* what the hardware calls itself */
	unsigned short device;		/* what we call it */
	int vfs_at_load;
	bool relabelled;
	struct lab_parent *parent;	/* LAB_MDEV_PF, while bound */

	/* guards everything below, and the state of the card's VFs */
	struct mutex lock;
	unsigned int nr_vgpus;
	unsigned long long framebuffer_mib;	/* of every vGPU on the card */
};

/* types.c: what a card can carry; all but the table need card->lock */
extern const struct lab_type lab_types[LAB_NR_TYPES];
const struct lab_type *lab_find_type(unsigned int id);
unsigned int lab_room(const struct lab_card *card, const struct lab_type *type);
int lab_take(struct lab_card *card, const struct lab_type *type);
void lab_give(struct lab_card *card);
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
			       const struct lab_type *info);
void lab_vgpu_destroy(struct lab_vgpu *vgpu);

/* vf.c: the vendor-specific VFIO form */
int lab_vf_add(struct lab_card *card, struct pci_dev *pdev);
void lab_vf_del(struct pci_dev *pdev);

#endif /* VGPULAB_H */
