// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device that a guest sees in the two mdev forms.
 *
 * A config space with NVIDIA's ids and one small BAR that remembers what is
 * written to it. No interrupts, no DMA: QEMU starts with less, and a guest
 * that lists its PCI devices needs no more. What the host sees of a device in
 * use (parameters, VM name, placement) is here too, since it depends on being open.
 */
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "vgpulab.h"

#define LAB_CONFIG_SIZE	256
#define LAB_BAR0_SIZE	4096

struct lab_vgpu {
	struct vfio_device vdev;
	unsigned short device;		/* the PCI ids that a guest sees */
	unsigned int subdevice;
	struct lab_card *card;
	struct lab_vgpu_slot *slot;

	struct mutex lock;		/* guards everything below */
	bool in_use;
	char vm_name[TASK_COMM_LEN];
	char params[LAB_PARAMS_MAX];
	u8 config[LAB_CONFIG_SIZE];
	u8 writable[LAB_CONFIG_SIZE];	/* the bits that a guest may change */
	u8 bar0[LAB_BAR0_SIZE];
};

static struct lab_vgpu *to_vgpu(struct vfio_device *vdev)
{
	return container_of(vdev, struct lab_vgpu, vdev);
}

/* ---------------------------------------------------- the guest's view */

static void lab_put16(u8 *config, int where, u16 value)
{
	config[where] = value & 0xff;
	config[where + 1] = value >> 8;
}

static void lab_vgpu_reset(struct lab_vgpu *vgpu)
{
	u8 *config = vgpu->config;

	memset(config, 0, LAB_CONFIG_SIZE);
	memset(vgpu->writable, 0, LAB_CONFIG_SIZE);
	memset(vgpu->bar0, 0, LAB_BAR0_SIZE);

	lab_put16(config, PCI_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	lab_put16(config, PCI_DEVICE_ID, vgpu->device);
	lab_put16(config, PCI_SUBSYSTEM_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	lab_put16(config, PCI_SUBSYSTEM_ID, vgpu->subdevice);
	lab_put16(config, PCI_CLASS_DEVICE, LAB_CLASS >> 8);
	config[PCI_REVISION_ID] = LAB_REVISION;

	lab_put16(vgpu->writable, PCI_COMMAND,
		  PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER |
		  PCI_COMMAND_INTX_DISABLE);
	vgpu->writable[PCI_CACHE_LINE_SIZE] = 0xff;
	vgpu->writable[PCI_LATENCY_TIMER] = 0xff;
	vgpu->writable[PCI_INTERRUPT_LINE] = 0xff;
	/* The low bits of BAR0 stay zero, so its size can be probed. */
	lab_put16(vgpu->writable, PCI_BASE_ADDRESS_0,
		  (u16)~(LAB_BAR0_SIZE - 1));
	lab_put16(vgpu->writable, PCI_BASE_ADDRESS_0 + 2, 0xffff);
}

/* Finds the bytes behind *pos and shortens *count to what is there. */
static u8 *lab_region(struct lab_vgpu *vgpu, loff_t pos, size_t *count)
{
	u64 offset = pos & VFIO_PCI_OFFSET_MASK;
	u64 size;
	u8 *base;

	switch (VFIO_PCI_OFFSET_TO_INDEX(pos)) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		base = vgpu->config;
		size = LAB_CONFIG_SIZE;
		break;
	case VFIO_PCI_BAR0_REGION_INDEX:
		base = vgpu->bar0;
		size = LAB_BAR0_SIZE;
		break;
	default:
		return NULL;
	}
	if (offset >= size)
		return NULL;
	*count = min_t(u64, *count, size - offset);
	return base + offset;
}

static ssize_t lab_vgpu_read(struct vfio_device *vdev, char __user *buf,
			     size_t count, loff_t *ppos)
{
	struct lab_vgpu *vgpu = to_vgpu(vdev);
	ssize_t ret = -EINVAL;
	u8 *from;

	mutex_lock(&vgpu->lock);
	from = lab_region(vgpu, *ppos, &count);
	if (from)
		ret = copy_to_user(buf, from, count) ? -EFAULT : count;
	mutex_unlock(&vgpu->lock);
	if (ret > 0)
		*ppos += ret;
	return ret;
}

/* `to` points into the config space; bits that are not writable stay. */
static int lab_config_write(struct lab_vgpu *vgpu, u8 *to,
			    const char __user *buf, size_t count)
{
	const u8 *mask = vgpu->writable + (to - vgpu->config);
	u8 bytes[LAB_CONFIG_SIZE];
	size_t i;

	if (copy_from_user(bytes, buf, count))
		return -EFAULT;
	for (i = 0; i < count; i++)
		to[i] = (to[i] & ~mask[i]) | (bytes[i] & mask[i]);
	return 0;
}

static ssize_t lab_vgpu_write(struct vfio_device *vdev, const char __user *buf,
			      size_t count, loff_t *ppos)
{
	struct lab_vgpu *vgpu = to_vgpu(vdev);
	int ret = -EINVAL;
	u8 *to;

	mutex_lock(&vgpu->lock);
	to = lab_region(vgpu, *ppos, &count);
	if (to && VFIO_PCI_OFFSET_TO_INDEX(*ppos) == VFIO_PCI_CONFIG_REGION_INDEX)
		ret = lab_config_write(vgpu, to, buf, count);
	else if (to)
		ret = copy_from_user(to, buf, count) ? -EFAULT : 0;
	mutex_unlock(&vgpu->lock);
	if (ret)
		return ret;
	*ppos += count;
	return count;
}

static long lab_device_info(void __user *arg)
{
	const unsigned long minsz = offsetofend(struct vfio_device_info, num_irqs);
	struct vfio_device_info info;

	if (copy_from_user(&info, arg, minsz))
		return -EFAULT;
	if (info.argsz < minsz)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(arg, &info, minsz) ? -EFAULT : 0;
}

static long lab_region_info(void __user *arg)
{
	const unsigned long minsz = offsetofend(struct vfio_region_info, offset);
	struct vfio_region_info info;

	if (copy_from_user(&info, arg, minsz))
		return -EFAULT;
	if (info.argsz < minsz || info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	info.flags = 0;
	info.cap_offset = 0;
	info.size = 0;
	info.offset = VFIO_PCI_INDEX_TO_OFFSET(info.index);
	if (info.index == VFIO_PCI_CONFIG_REGION_INDEX)
		info.size = LAB_CONFIG_SIZE;
	else if (info.index == VFIO_PCI_BAR0_REGION_INDEX)
		info.size = LAB_BAR0_SIZE;
	if (info.size)
		info.flags = VFIO_REGION_INFO_FLAG_READ |
			     VFIO_REGION_INFO_FLAG_WRITE;
	return copy_to_user(arg, &info, minsz) ? -EFAULT : 0;
}

static long lab_irq_info(void __user *arg)
{
	const unsigned long minsz = offsetofend(struct vfio_irq_info, count);
	struct vfio_irq_info info;

	if (copy_from_user(&info, arg, minsz))
		return -EFAULT;
	if (info.argsz < minsz || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(arg, &info, minsz) ? -EFAULT : 0;
}

static long lab_vgpu_ioctl(struct vfio_device *vdev, unsigned int cmd,
			   unsigned long arg)
{
	struct lab_vgpu *vgpu = to_vgpu(vdev);

	switch (cmd) {
	case VFIO_DEVICE_GET_INFO:
		return lab_device_info((void __user *)arg);
	case VFIO_DEVICE_GET_REGION_INFO:
		return lab_region_info((void __user *)arg);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return lab_irq_info((void __user *)arg);
	case VFIO_DEVICE_SET_IRQS:
		return -EINVAL;
	case VFIO_DEVICE_RESET:
		mutex_lock(&vgpu->lock);
		lab_vgpu_reset(vgpu);
		mutex_unlock(&vgpu->lock);
		return 0;
	}
	return -ENOTTY;
}

static int lab_vgpu_open(struct vfio_device *vdev)
{
	struct lab_vgpu *vgpu = to_vgpu(vdev);

	mutex_lock(&vgpu->lock);
	lab_vgpu_reset(vgpu);
	get_task_comm(vgpu->vm_name, current);
	vgpu->in_use = true;
	WRITE_ONCE(vgpu->slot->user, task_tgid_nr(current));
	mutex_unlock(&vgpu->lock);
	return 0;
}

static void lab_vgpu_close(struct vfio_device *vdev)
{
	struct lab_vgpu *vgpu = to_vgpu(vdev);

	mutex_lock(&vgpu->lock);
	vgpu->vm_name[0] = '\0';
	vgpu->in_use = false;
	WRITE_ONCE(vgpu->slot->user, 0);
	mutex_unlock(&vgpu->lock);
}

static const struct vfio_device_ops lab_vgpu_ops = {
	.name = "nvidia-vgpu-vfio",
	.open_device = lab_vgpu_open,
	.close_device = lab_vgpu_close,
	.read = lab_vgpu_read,
	.write = lab_vgpu_write,
	.ioctl = lab_vgpu_ioctl,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.bind_iommufd = vfio_iommufd_emulated_bind,
	.unbind_iommufd = vfio_iommufd_emulated_unbind,
	.attach_ioas = vfio_iommufd_emulated_attach_ioas,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
#endif
};

/* -------------------------------------------------- the host's view */

static ssize_t vgpu_params_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(dev);
	ssize_t ret = 0;

	mutex_lock(&vgpu->lock);
	if (vgpu->params[0])
		ret = sysfs_emit(buf, "%s\n", vgpu->params);
	mutex_unlock(&vgpu->lock);
	return ret;
}

static ssize_t vgpu_params_store(struct device *dev,
				 struct device_attribute *attr,
				 const char *buf, size_t count)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(dev);
	int ret = -EPERM;

	mutex_lock(&vgpu->lock);
	if (!vgpu->in_use)
		ret = lab_set_params(vgpu->params, buf, count);
	mutex_unlock(&vgpu->lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(vgpu_params);

static ssize_t vm_name_show(struct device *dev, struct device_attribute *attr,
			    char *buf)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(dev);
	ssize_t ret;

	mutex_lock(&vgpu->lock);
	ret = sysfs_emit(buf, "%s\n", vgpu->vm_name);
	mutex_unlock(&vgpu->lock);
	return ret;
}
static DEVICE_ATTR_RO(vm_name);

static ssize_t placement_id_show(struct device *dev,
				 struct device_attribute *attr, char *buf)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(dev);
	unsigned int placement;

	mutex_lock(&vgpu->card->lock);
	placement = vgpu->slot->placement;
	mutex_unlock(&vgpu->card->lock);
	if (placement == LAB_NO_PLACEMENT)
		return sysfs_emit(buf, "Not Applicable\n");
	return sysfs_emit(buf, "%u\n", placement);
}

static ssize_t placement_id_store(struct device *dev,
				  struct device_attribute *attr,
				  const char *buf, size_t count)
{
	struct lab_vgpu *vgpu = dev_get_drvdata(dev);
	unsigned int wanted;
	int ret = -EPERM;

	if (kstrtouint(buf, 10, &wanted))
		return -EINVAL;
	mutex_lock(&vgpu->lock);
	if (!vgpu->in_use) {
		mutex_lock(&vgpu->card->lock);
		ret = lab_move(vgpu->card, vgpu->slot, wanted);
		mutex_unlock(&vgpu->card->lock);
	}
	mutex_unlock(&vgpu->lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(placement_id);

static struct attribute *lab_vgpu_attrs[] = {
	&dev_attr_vgpu_params.attr,
	&dev_attr_vm_name.attr,
	&dev_attr_placement_id.attr,
	NULL
};

static umode_t lab_vgpu_visible(struct kobject *kobj, struct attribute *attr,
				int n)
{
	bool place = attr == &dev_attr_placement_id.attr;

	return place && lab_branch() < LAB_PLACES_SINCE ? 0 : attr->mode;
}

static const struct attribute_group lab_vgpu_group = {
	.name = "nvidia",
	.is_visible = lab_vgpu_visible,
	.attrs = lab_vgpu_attrs,
};

const struct attribute_group *lab_vgpu_groups[] = {
	&lab_vgpu_group,
	NULL
};

/* ------------------------------------------------- making and removing */

struct lab_vgpu *lab_vgpu_make(struct device *dev, unsigned short device,
			       struct lab_card *card,
			       struct lab_vgpu_slot *slot)
{
	struct lab_vgpu *vgpu;
	int ret;

	vgpu = vfio_alloc_device(lab_vgpu, vdev, dev, &lab_vgpu_ops);
	if (IS_ERR(vgpu))
		return vgpu;
	mutex_init(&vgpu->lock);
	vgpu->device = device;
	vgpu->subdevice = slot->type->id;
	vgpu->card = card;
	vgpu->slot = slot;
	lab_vgpu_reset(vgpu);
	dev_set_drvdata(dev, vgpu);
	ret = vfio_register_emulated_iommu_dev(&vgpu->vdev);
	if (ret) {
		vfio_put_device(&vgpu->vdev);
		return ERR_PTR(ret);
	}
	return vgpu;
}

struct lab_vgpu_slot *lab_vgpu_slot(struct lab_vgpu *vgpu)
{
	return vgpu->slot;
}

/* Blocks in the VFIO core for as long as somebody holds the device open. */
void lab_vgpu_destroy(struct lab_vgpu *vgpu)
{
	vfio_unregister_group_dev(&vgpu->vdev);
	vfio_put_device(&vgpu->vdev);
}
