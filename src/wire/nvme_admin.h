/*
 * nvme_admin.h - registers, admin commands and Identify data of an NVMe controller (NVMe base specification 2.0,
 * sections 3.1 and 5; PCIe transport 1.0).
 *
 * Only what the user-space driver and its mock controller use. Numbers are little-endian, as all machines here are.
 */
#ifndef TUTTI_WIRE_NVME_ADMIN_H
#define TUTTI_WIRE_NVME_ADMIN_H

#include "wire/nvme.h"

/* Offsets in BAR 0. 64-bit registers are read and written as two words, low first. */
enum {
	NVME_REG_CAP = 0x00,
	NVME_REG_VS = 0x08,
	NVME_REG_INTMS = 0x0c,
	NVME_REG_CC = 0x14,
	NVME_REG_CSTS = 0x1c,
	NVME_REG_AQA = 0x24,
	NVME_REG_ASQ = 0x28,
	NVME_REG_ACQ = 0x30,
	NVME_REG_DOORBELLS = 0x1000,
};

/* CAP */
#define NVME_CAP_MQES(cap) ((uint32_t)((cap)&0xffffu) + 1)    /* entries of a queue, at most */
#define NVME_CAP_TO_500MS(cap) ((uint32_t)((cap) >> 24) & 0xffu) /* longest change of CSTS.RDY */
#define NVME_CAP_DSTRD(cap) ((uint32_t)((cap) >> 32) & 0xfu)  /* doorbells lie 4 << DSTRD bytes apart */
#define NVME_CAP_CSS_NVM(cap) ((uint32_t)((cap) >> 37) & 1u)
#define NVME_CAP_MPSMIN(cap) ((uint32_t)((cap) >> 48) & 0xfu) /* memory page: 4096 << this, at least */

/* CC, CSTS */
#define NVME_CC_EN 1u
#define NVME_CC_SHN_MASK (3u << 14)
#define NVME_CC_SHN_NORMAL (1u << 14)
#define NVME_CC_ENTRIES (6u << 16 | 4u << 20) /* submission entries of 64 bytes, completion entries of 16 */
#define NVME_CSTS_RDY 1u
#define NVME_CSTS_CFS 2u /* controller fatal status */
#define NVME_CSTS_SHST(csts) ((csts) >> 2 & 3u)
enum { NVME_SHST_DONE = 2 };
#define NVME_GONE 0xffffffffu /* what every register reads when the function has left the bus */

/* Admin commands. */
enum {
	NVME_ADMIN_DELETE_SQ = 0x00,
	NVME_ADMIN_CREATE_SQ = 0x01,
	NVME_ADMIN_DELETE_CQ = 0x04,
	NVME_ADMIN_CREATE_CQ = 0x05,
	NVME_ADMIN_IDENTIFY = 0x06,
	NVME_ADMIN_SET_FEATURES = 0x09,
};
enum { NVME_CNS_NAMESPACE = 0, NVME_CNS_CONTROLLER = 1, NVME_CNS_ACTIVE_LIST = 2 };
enum { NVME_FEATURE_QUEUES = 0x07 };
#define NVME_QUEUE_CONTIGUOUS 1u
#define NVME_CQ_INTERRUPT 2u

/* Status of the command specific type (SCT 1) that the driver tells apart. */
enum { NVME_SC_INVALID_CQ = 0x100, NVME_SC_INVALID_QUEUE = 0x101, NVME_SC_QUEUE_SIZE = 0x102 };

/* Identify controller. */
struct nvme_id_ctrl {
	uint16_t vid, ssvid;
	char sn[20]; /* padded with blanks, no zero at the end; so are mn and fr */
	char mn[40];
	char fr[8];
	uint8_t rab;
	uint8_t ieee[3];
	uint8_t cmic;
	uint8_t mdts; /* 0: no limit; else (4096 << CAP.MPSMIN) << mdts bytes */
	uint8_t rsvd78[434];
	uint8_t sqes, cqes; /* low four bits: log2 of the smallest entry */
	uint16_t maxcmd;
	uint32_t nn;   /* namespaces, at most */
	uint16_t oncs; /* NVME_ONCS_DSM and others */
	uint16_t fuses;
	uint8_t fna;
	uint8_t vwc; /* bit 0: there is a volatile write cache */
	uint8_t rsvd526[10];
	uint32_t sgls; /* bits 1:0: 0 no SGL, 1 any alignment, 2 four bytes */
	uint8_t rsvd540[3556];
};
#define NVME_ONCS_DSM 4u /* Dataset Management */
NVME_ASSERT(sizeof(struct nvme_id_ctrl) == 4096, "Identify controller");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ctrl, mdts) == 77, "MDTS");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ctrl, sqes) == 512, "SQES");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ctrl, oncs) == 520, "ONCS");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ctrl, vwc) == 525, "VWC");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ctrl, sgls) == 536, "SGLS");

/* Identify namespace, NVM command set. */
struct nvme_id_ns {
	uint64_t nsze; /* in logical blocks; 0: not active */
	uint64_t ncap, nuse;
	uint8_t nsfeat;
	uint8_t nlbaf;
	uint8_t flbas; /* bits 3:0: number of the format in use */
	uint8_t rsvd27[19];
	uint16_t noiob; /* commands should not cross a multiple of this many blocks; 0: not said */
	uint8_t rsvd48[80];
	struct {
		uint16_t ms; /* metadata bytes of a block */
		uint8_t lbads; /* log2 of its data bytes */
		uint8_t rp;
	} lbaf[16];
	uint8_t rsvd192[3904];
};
NVME_ASSERT(sizeof(struct nvme_id_ns) == 4096, "Identify namespace");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ns, noiob) == 46, "NOIOB");
NVME_ASSERT(__builtin_offsetof(struct nvme_id_ns, lbaf) == 128, "LBA formats");

#endif
