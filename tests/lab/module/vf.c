// SPDX-License-Identifier: GPL-2.0-only
/*
 * vGPUs as virtual functions: the vendor-specific VFIO framework.
 *
 * The VF stays bound to "nvidia", which is itself its VFIO driver: device
 * access is vfio-pci-core's, and what the vendor adds is a sysfs directory
 * whose current_vgpu_type makes and destroys the vGPU. A VF without a type
 * cannot be opened. The errnos of the writes are the reason for this file:
 * vgpuctl must be right about each of them (README.md has the table).
 */
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "vgpulab.h"

static bool header = true;
module_param(header, bool, 0644);
MODULE_PARM_DESC(header, "creatable_vgpu_types starts with a header line");

static unsigned int exit_delay_ms;
module_param(exit_delay_ms, uint, 0644);
MODULE_PARM_DESC(exit_delay_ms, "for so long after the last close a type cannot be cleared (EBUSY)");

static bool clear_waits;
module_param(clear_waits, bool, 0644);
MODULE_PARM_DESC(clear_waits, "clearing the type of a VF in use waits for its VM instead of EPERM");

static bool clear_in_use;
module_param(clear_in_use, bool, 0644);
MODULE_PARM_DESC(clear_in_use, "clearing the type of a VF in use is done, as if the vGPU had died");

/* VFIO requires drvdata to be `core`; it is the first member. */
struct lab_vf {
	struct vfio_pci_core_device core;
	struct lab_card *card;
	wait_queue_head_t closed;

	/* card->lock guards everything below */
	struct lab_vgpu_slot *vgpu;	/* NULL: no type */
	bool in_use;
	bool was_used;
	unsigned long closed_at;	/* jiffies, if was_used */
	char params[LAB_PARAMS_MAX];
};

static struct lab_vf *to_vf(struct vfio_device *vdev)
{
	return container_of(vdev, struct lab_vf, core.vdev);
}

static struct lab_vf *dev_to_vf(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct lab_vf, core);
}

/* ---------------------------------------------------------- the device */

/* Needs card->lock. The vGPU may have died under its VM (clear_in_use). */
static void lab_vf_unused(struct lab_vf *vf)
{
	vf->in_use = false;
	if (vf->vgpu)
		vf->vgpu->user = 0;
}

static int lab_vf_open(struct vfio_device *vdev)
{
	struct lab_vf *vf = to_vf(vdev);
	bool has_type;
	int ret;

	mutex_lock(&vf->card->lock);
	has_type = vf->vgpu;
	vf->in_use = has_type;
	if (has_type)
		vf->vgpu->user = task_tgid_nr(current);
	mutex_unlock(&vf->card->lock);
	if (!has_type) {
		pci_err(vf->core.pdev, "current_vgpu_type of VF not configured\n");
		return -ENODEV;
	}

	ret = vfio_pci_core_enable(&vf->core);
	if (ret) {
		mutex_lock(&vf->card->lock);
		lab_vf_unused(vf);
		mutex_unlock(&vf->card->lock);
		return ret;
	}
	vfio_pci_core_finish_enable(&vf->core);
	return 0;
}

static void lab_vf_close(struct vfio_device *vdev)
{
	struct lab_vf *vf = to_vf(vdev);

	vfio_pci_core_close_device(vdev);
	mutex_lock(&vf->card->lock);
	lab_vf_unused(vf);
	vf->was_used = true;
	vf->closed_at = jiffies;
	mutex_unlock(&vf->card->lock);
	wake_up_all(&vf->closed);
}

/*
 * VFIO shows a guest the kernel's idea of a VF's vendor and device, but the
 * hardware's class. Put ours over it.
 */
static ssize_t lab_vf_read(struct vfio_device *vdev, char __user *buf,
			   size_t count, loff_t *ppos)
{
	const u8 bytes[] = { LAB_REVISION, LAB_CLASS & 0xff,
			     (LAB_CLASS >> 8) & 0xff, LAB_CLASS >> 16 };
	u64 start = *ppos & VFIO_PCI_OFFSET_MASK;
	bool config = VFIO_PCI_OFFSET_TO_INDEX(*ppos) ==
		      VFIO_PCI_CONFIG_REGION_INDEX;
	ssize_t done = vfio_pci_core_read(vdev, buf, count, ppos);
	int i;

	if (!config || done <= 0)
		return done;
	for (i = 0; i < ARRAY_SIZE(bytes); i++) {
		u64 at = PCI_REVISION_ID + i;

		if (at >= start && at < start + done &&
		    put_user(bytes[i], (u8 __user *)buf + (at - start)))
			return -EFAULT;
	}
	return done;
}

static const struct vfio_device_ops lab_vf_ops = {
	.name = "nvidia-vgpu-vfio-pci",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = lab_vf_open,
	.close_device = lab_vf_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = lab_vf_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
#endif
};

/* --------------------------------------------------------------- sysfs */

static ssize_t creatable_vgpu_types_show(struct device *dev,
					 struct device_attribute *attr,
					 char *buf)
{
	struct lab_vf *vf = dev_to_vf(dev);
	const struct lab_type *type = vf->card->model->types;
	int i, len = 0;

	if (header)
		len += sysfs_emit_at(buf, len, "ID    : vGPU Name\n");
	mutex_lock(&vf->card->lock);
	for (i = 0; i < vf->card->nr_types && !vf->vgpu; i++, type++)
		if (lab_room(vf->card, type))
			len += sysfs_emit_at(buf, len, "%-5d : %s\n", type->id,
					     type->name);
	mutex_unlock(&vf->card->lock);
	return len;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev,
				      struct device_attribute *attr, char *buf)
{
	struct lab_vf *vf = dev_to_vf(dev);
	unsigned int id;

	mutex_lock(&vf->card->lock);
	id = vf->vgpu ? vf->vgpu->type->id : 0;
	mutex_unlock(&vf->card->lock);
	return sysfs_emit(buf, "%d\n", id);
}

/* Needs card->lock, as does the next. */
static int lab_vf_set(struct lab_vf *vf, unsigned int id)
{
	const struct lab_type *type = lab_find_type(vf->card, id);
	struct lab_vgpu_slot *vgpu;

	if (vf->vgpu)
		return -EPERM;
	if (!type)
		return -EIO;
	vgpu = lab_take(vf->card, type);
	if (IS_ERR(vgpu))
		return PTR_ERR(vgpu);
	vf->vgpu = vgpu;
	vf->was_used = false;
	return 0;
}

static int lab_vf_clear(struct lab_vf *vf)
{
	if (!vf->vgpu || (vf->in_use && !clear_in_use))
		return -EPERM;
	if (vf->was_used && exit_delay_ms &&
	    time_before(jiffies, vf->closed_at + msecs_to_jiffies(exit_delay_ms)))
		return -EBUSY;
	lab_give(vf->card, vf->vgpu);
	vf->vgpu = NULL;
	vf->params[0] = '\0';
	return 0;
}

static ssize_t current_vgpu_type_store(struct device *dev,
				       struct device_attribute *attr,
				       const char *buf, size_t count)
{
	struct lab_vf *vf = dev_to_vf(dev);
	unsigned int id;
	int ret;

	if (kstrtouint(buf, 10, &id))
		return -EINVAL;
	if (!id && clear_waits)
		wait_event(vf->closed, !READ_ONCE(vf->in_use));
	mutex_lock(&vf->card->lock);
	ret = id ? lab_vf_set(vf, id) : lab_vf_clear(vf);
	mutex_unlock(&vf->card->lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static ssize_t vgpu_params_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	struct lab_vf *vf = dev_to_vf(dev);
	ssize_t ret = 0;

	mutex_lock(&vf->card->lock);
	if (vf->params[0])
		ret = sysfs_emit(buf, "%s\n", vf->params);
	mutex_unlock(&vf->card->lock);
	return ret;
}

static ssize_t vgpu_params_store(struct device *dev,
				 struct device_attribute *attr,
				 const char *buf, size_t count)
{
	struct lab_vf *vf = dev_to_vf(dev);
	int ret;

	mutex_lock(&vf->card->lock);
	if (!vf->vgpu)
		ret = -ENXIO;
	else if (vf->in_use)
		ret = -EPERM;
	else
		ret = lab_set_params(vf->params, buf, count);
	mutex_unlock(&vf->card->lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(vgpu_params);

/* Where a vGPU is: outside mixed size NVML's "none", as is a GI without MIG. */
static ssize_t lab_vf_place_show(struct device *dev, char *buf, bool gi)
{
	struct lab_vf *vf = dev_to_vf(dev);
	ssize_t ret = -ENXIO;

	mutex_lock(&vf->card->lock);
	if (vf->vgpu && gi)
		ret = sysfs_emit(buf, "%u\n", vf->vgpu->gi ? vf->vgpu->gi->id :
				 LAB_NO_PROFILE);
	else if (vf->vgpu)
		ret = sysfs_emit(buf, "%u\n", vf->vgpu->placement);
	mutex_unlock(&vf->card->lock);
	return ret;
}

static ssize_t lab_vf_place_store(struct device *dev, const char *buf,
				  size_t count, bool gi)
{
	struct lab_vf *vf = dev_to_vf(dev);
	unsigned int wanted;
	int ret;

	if (kstrtouint(buf, 10, &wanted))
		return -EINVAL;
	mutex_lock(&vf->card->lock);
	if (!vf->vgpu)
		ret = -ENXIO;
	else if (vf->in_use)
		ret = -EPERM;
	else if (gi)
		ret = lab_move_gi(vf->card, vf->vgpu, wanted);
	else
		ret = lab_move(vf->card, vf->vgpu, wanted);
	mutex_unlock(&vf->card->lock);
	return ret ?: count;
}

static ssize_t placement_id_show(struct device *dev,
				 struct device_attribute *attr, char *buf)
{
	return lab_vf_place_show(dev, buf, false);
}

static ssize_t placement_id_store(struct device *dev,
				  struct device_attribute *attr,
				  const char *buf, size_t count)
{
	return lab_vf_place_store(dev, buf, count, false);
}
static DEVICE_ATTR_RW(placement_id);

static ssize_t gpu_instance_id_show(struct device *dev,
				    struct device_attribute *attr, char *buf)
{
	return lab_vf_place_show(dev, buf, true);
}

static ssize_t gpu_instance_id_store(struct device *dev,
				     struct device_attribute *attr,
				     const char *buf, size_t count)
{
	return lab_vf_place_store(dev, buf, count, true);
}
static DEVICE_ATTR_RW(gpu_instance_id);

static struct attribute *lab_vf_attrs[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_vgpu_params.attr,
	&dev_attr_placement_id.attr,
	&dev_attr_gpu_instance_id.attr,
	NULL
};

static umode_t lab_vf_visible(struct kobject *kobj, struct attribute *attr,
			      int n)
{
	bool place = attr == &dev_attr_placement_id.attr ||
		     attr == &dev_attr_gpu_instance_id.attr;

	return place && lab_branch() < LAB_PLACES_SINCE ? 0 : attr->mode;
}

static const struct attribute_group lab_vf_group = {
	.name = "nvidia",
	.is_visible = lab_vf_visible,
	.attrs = lab_vf_attrs,
};

/* ------------------------------------------------------ bind and unbind */

int lab_vf_add(struct lab_card *card, struct pci_dev *pdev)
{
	struct lab_vf *vf;
	int ret;

	vf = vfio_alloc_device(lab_vf, core.vdev, &pdev->dev, &lab_vf_ops);
	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->card = card;
	init_waitqueue_head(&vf->closed);
	dev_set_drvdata(&pdev->dev, &vf->core);
	ret = vfio_pci_core_register_device(&vf->core);
	if (ret)
		goto err_put;
	ret = sysfs_create_group(&pdev->dev.kobj, &lab_vf_group);
	if (ret)
		goto err_unregister;
	return 0;

err_unregister:
	vfio_pci_core_unregister_device(&vf->core);
err_put:
	vfio_put_device(&vf->core.vdev);
	return ret;
}

/* The first call blocks for as long as somebody holds the VF open. */
void lab_vf_del(struct pci_dev *pdev)
{
	struct lab_vf *vf = dev_to_vf(&pdev->dev);

	vfio_pci_core_unregister_device(&vf->core);
	sysfs_remove_group(&pdev->dev.kobj, &lab_vf_group);
	mutex_lock(&vf->card->lock);
	if (vf->vgpu)
		lab_give(vf->card, vf->vgpu);
	vf->vgpu = NULL;
	mutex_unlock(&vf->card->lock);
	vfio_put_device(&vf->core.vdev);
}
