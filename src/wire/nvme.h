/*
 * nvme.h - NVM Express structures as they lie in memory (NVMe base specification 2.0, NVM command set 1.0).
 *
 * Only what the project uses. Field names follow the specification. Real and virtual controllers
 * answer the same bytes.
 */
#ifndef TUTTI_WIRE_NVME_H
#define TUTTI_WIRE_NVME_H

#include <stdint.h>

#ifdef __cplusplus
#define NVME_ASSERT(c, m) static_assert(c, m)
#else
#define NVME_ASSERT(c, m) _Static_assert(c, m)
#endif

/* I/O commands (NVM command set 1.0, section 3.2). */
enum { NVME_CMD_FLUSH = 0x00, NVME_CMD_WRITE = 0x01, NVME_CMD_READ = 0x02, NVME_CMD_DSM = 0x09 };

/* Command dword 0, bits 15:14: PRP or SGL for data transfer (base 2.0, figure 88). */
enum { NVME_PSDT_PRP = 0, NVME_PSDT_SGL = 1 };

/* SGL descriptor types, bits 7:4 of the identifier (base 2.0, section 4.1.2). */
enum { NVME_SGL_DATA = 0x0, NVME_SGL_SEGMENT = 0x2, NVME_SGL_LAST_SEGMENT = 0x3 };

struct nvme_sgl {
	uint64_t addr;
	uint32_t len; /* bytes; of a segment: bytes of its descriptors */
	uint8_t rsvd[3];
	uint8_t id; /* type << 4 | subtype */
};
NVME_ASSERT(sizeof(struct nvme_sgl) == 16, "SGL descriptor");

struct nvme_sqe {
	uint8_t opcode;
	uint8_t flags; /* bits 7:6: PSDT */
	uint16_t cid;
	uint32_t nsid;
	uint64_t rsvd;
	uint64_t mptr;
	union {
		struct {
			uint64_t prp1, prp2;
		} prp;
		struct nvme_sgl sgl;
	} dptr;
	uint32_t cdw10; /* read, write: SLBA bits 31:0 */
	uint32_t cdw11; /* SLBA bits 63:32 */
	uint32_t cdw12; /* bits 15:0: number of logical blocks, 0's based */
	uint32_t cdw13, cdw14, cdw15;
};
NVME_ASSERT(sizeof(struct nvme_sqe) == 64, "submission queue entry");

/* Dataset Management: CDW10 is the number of ranges, 0's based; CDW11 what is said of them (NVM 1.0, section 3.2.3). */
struct nvme_dsm_range {
	uint32_t attributes;
	uint32_t blocks; /* not 0's based */
	uint64_t slba;
};
NVME_ASSERT(sizeof(struct nvme_dsm_range) == 16, "range of Dataset Management");
#define NVME_DSM_DEALLOCATE 4u

struct nvme_cqe {
	uint32_t dw0;
	uint32_t dw1;
	uint16_t sq_head;
	uint16_t sq_id;
	uint32_t cid_status; /* bits 15:0 command id, 16 phase, 31:17 status field; one word, so that it is written at
	                        once */
};
NVME_ASSERT(sizeof(struct nvme_cqe) == 16, "completion queue entry");

/* Status as the project returns it: SCT << 8 | SC (base 2.0, section 4.2.3). 0 is success. */
#define NVME_STATUS(cid_status) (((cid_status) >> 17) & 0x7ffu)
#define NVME_PHASE(cid_status) (((cid_status) >> 16) & 1u)
#define NVME_CID(cid_status) ((uint16_t)((cid_status)&0xffffu))

enum {
	NVME_SC_SUCCESS = 0x000,
	NVME_SC_INVALID_OPCODE = 0x001,
	NVME_SC_INVALID_FIELD = 0x002,
	NVME_SC_DATA_TRANSFER = 0x004,
	NVME_SC_INTERNAL = 0x006,
	NVME_SC_ABORTED_SQ_DELETED = 0x008,
	NVME_SC_INVALID_NS = 0x00b,
	NVME_SC_SGL_SEGMENT = 0x00d, /* invalid SGL segment descriptor */
	NVME_SC_SGL_COUNT = 0x00e,   /* invalid number of SGL descriptors */
	NVME_SC_SGL_LENGTH = 0x00f,  /* data SGL length invalid */
	NVME_SC_SGL_TYPE = 0x011,    /* SGL descriptor type invalid */
	NVME_SC_PRP_OFFSET = 0x013,  /* PRP offset invalid */
	NVME_SC_LBA_RANGE = 0x080,
	NVME_SC_CAPACITY = 0x081,
	NVME_SC_WRITE_FAULT = 0x280,
	NVME_SC_READ_ERROR = 0x281, /* unrecovered read error */
};

#endif
