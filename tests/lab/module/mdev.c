// SPDX-License-Identifier: GPL-2.0-only
/*
 * vGPUs as mediated devices, on the PF or one on each VF.
 *
 * The kernel's mdev core makes the sysfs files; this file answers its three
 * questions (how many are left, describe, make one) for one function.
 */
#include <linux/module.h>
#include <linux/slab.h>

#include "vgpulab.h"

struct lab_mdev_type {
	struct mdev_type core;
	const struct lab_type *info;
};

/* One function that carries mdevs. */
struct lab_parent {
	struct mdev_parent core;
	struct lab_card *card;
	unsigned short device;
	bool single;
	unsigned int used;		/* card->lock */
	struct lab_mdev_type types[LAB_MAX_TYPES];
	struct mdev_type *list[LAB_MAX_TYPES];
};

static struct lab_vgpu_slot *lab_parent_take(struct lab_parent *parent,
					     const struct lab_type *info,
					     const guid_t *uuid)
{
	struct lab_vgpu_slot *slot = ERR_PTR(-EIO);

	mutex_lock(&parent->card->lock);
	if (!parent->single || !parent->used)
		slot = lab_take(parent->card, info);
	if (!IS_ERR(slot)) {
		guid_copy(&slot->uuid, uuid);
		parent->used++;
	}
	mutex_unlock(&parent->card->lock);
	return slot;
}

static void lab_parent_give(struct lab_parent *parent,
			    struct lab_vgpu_slot *slot)
{
	mutex_lock(&parent->card->lock);
	lab_give(parent->card, slot);
	parent->used--;
	mutex_unlock(&parent->card->lock);
}

static int lab_mdev_probe(struct mdev_device *mdev)
{
	struct lab_parent *parent =
		container_of(mdev->type->parent, struct lab_parent, core);
	const struct lab_type *info =
		container_of(mdev->type, struct lab_mdev_type, core)->info;
	struct lab_vgpu_slot *slot;
	struct lab_vgpu *vgpu;

	slot = lab_parent_take(parent, info, &mdev->uuid);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	vgpu = lab_vgpu_make(&mdev->dev, parent->device, parent->card, slot);
	if (IS_ERR(vgpu)) {
		lab_parent_give(parent, slot);
		return PTR_ERR(vgpu);
	}
	return 0;
}

static void lab_mdev_remove(struct mdev_device *mdev)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(&mdev->dev);
	struct lab_vgpu_slot *slot = lab_vgpu_slot(vgpu);

	lab_vgpu_destroy(vgpu);
	lab_parent_give(container_of(mdev->type->parent, struct lab_parent,
				     core), slot);
}

static unsigned int lab_mdev_available(struct mdev_type *mtype)
{
	struct lab_parent *parent =
		container_of(mtype->parent, struct lab_parent, core);
	const struct lab_type *info =
		container_of(mtype, struct lab_mdev_type, core)->info;
	unsigned int room;

	mutex_lock(&parent->card->lock);
	room = lab_room(parent->card, info);
	if (parent->single)
		room = room && !parent->used;
	mutex_unlock(&parent->card->lock);
	return room;
}

static ssize_t lab_mdev_description(struct mdev_type *mtype, char *buf)
{
	const struct lab_type *info =
		container_of(mtype, struct lab_mdev_type, core)->info;

	return sysfs_emit(buf,
			  "num_heads=%d, frl_config=%d, framebuffer=%lluM, max_resolution=%dx%d, max_instance=%d\n",
			  1, 60, info->framebuffer_mib, 3840, 2400,
			  info->max_instance);
}

static struct mdev_driver lab_mdev_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
		.dev_groups = lab_vgpu_groups,
	},
	.probe = lab_mdev_probe,
	.remove = lab_mdev_remove,
	.get_available = lab_mdev_available,
	.show_description = lab_mdev_description,
};

struct lab_parent *lab_parent_add(struct lab_card *card, struct pci_dev *pdev,
				  bool single)
{
	struct lab_parent *parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	const struct lab_type *info = card->model->types;
	int i, ret;

	if (!parent)
		return ERR_PTR(-ENOMEM);
	parent->card = card;
	parent->device = pdev->device;
	parent->single = single;
	for (i = 0; i < card->nr_types; i++, info++) {
		parent->types[i].info = info;
		parent->types[i].core.sysfs_name = info->id_text;
		parent->types[i].core.pretty_name = info->name;
		parent->list[i] = &parent->types[i].core;
	}
	ret = mdev_register_parent(&parent->core, &pdev->dev, &lab_mdev_driver,
				   parent->list, card->nr_types);
	if (ret) {
		kfree(parent);
		return ERR_PTR(ret);
	}
	return parent;
}

void lab_parent_del(struct lab_parent *parent)
{
	mdev_unregister_parent(&parent->core);
	kfree(parent);
}

int lab_mdev_init(void)
{
	return mdev_register_driver(&lab_mdev_driver);
}

void lab_mdev_exit(void)
{
	mdev_unregister_driver(&lab_mdev_driver);
}
