/*
 * mock_nvme.h - an NVMe controller of our own making, to do to a driver what no honest one does.
 *
 * A thread reads BAR 0 and the queues in ordinary memory, and sees the driver's memory only at the addresses that were
 * mapped for it (never equal to pointers). A script makes it late, forgetful, wrong or dead. It was written from the
 * specification, not from the driver.
 */
#ifndef TUTTI_TEST_CTRL_MOCK_NVME_H
#define TUTTI_TEST_CTRL_MOCK_NVME_H

#include "ctrl/nvme_ctrl.h"

enum mock_deed {
	MOCK_LATE = 1,     /* the completion comes arg ms later; so does what a deallocation does */
	MOCK_LOST,         /* it never comes */
	MOCK_TWICE,        /* it comes twice */
	MOCK_WRONG_PHASE,  /* with the phase bit of the round before: nobody can see it */
	MOCK_WRONG_CID,    /* with command id cid + arg */
	MOCK_STATUS,       /* with status arg, and no data is moved */
	MOCK_DATA_LATE,    /* the data of a read moves arg ms after the completion */
	MOCK_CFS,          /* fatal status: nothing is answered until a reset */
	MOCK_STALL,        /* nothing is answered until a reset, and the registers look well */
	MOCK_AFTER_RESET,  /* the completion is posted after the next reset, to where the queue was */
	MOCK_GONE,         /* all registers read ones, for ever */
};

struct mock_opts {
	uint32_t n_ns, lba_bytes, mdts, metadata_bytes; /* mdts as in Identify */
	uint32_t boundary_bytes;
	uint64_t ns_bytes;
	uint32_t queues, mqes, vectors;
	uint32_t dstrd;
	int no_sgl, no_reset, volatile_cache, dsm;
	int durable; /* keeps, beside the medium, what a power loss would leave: mock_power_cut */
	uint32_t run_bytes; /* it sees mapped memory in runs of this many bytes, each elsewhere; 0: as one */
	uint32_t to_500ms; /* 0: 20; the thread that plays the controller may have to wait for a core */
	int never_ready;
	const char *serial;
};

struct mock;
struct mock_counts {
	uint64_t commands, reads, writes, flushes, interrupts, resets, enables;
	uint64_t deallocations, deallocated_bytes;
	uint64_t dma_faults;     /* it was told an address that is not mapped */
	uint64_t denied;         /* it wanted to write while bus mastering was off */
	uint64_t double_ids;     /* a command id was used while a command of that id was in flight */
	uint64_t bad_doorbells;
	uint64_t crossed;        /* transfers over the boundary that it told */
	uint64_t en_under_load;  /* CC.EN was cleared while I/O commands were in flight, bus mastering on */
};

/*
 * Where a case begins, before its first mock: whatever a failed one before left behind is found no more, and what still
 * holds it knows other names.
 */
void mock_begin(void);
struct mock *mock_new(const struct mock_opts *o);
void mock_free(struct mock *m);
/* The next `count` commands of queue kind (0: admin, 1: I/O) and opcode (-1: any), after skipping `skip`, meet this
 * deed. */
void mock_script(struct mock *m, enum mock_deed deed, uint32_t arg, int io, int opcode, uint32_t skip, uint32_t count);
void mock_calm(struct mock *m); /* forgets all scripts */
/* Waits until nothing late is left to come. */
void mock_settle(struct mock *m);
uint32_t mock_pending(struct mock *m); /* deeds that nothing met yet */
struct mock_counts mock_count(struct mock *m);
uint64_t mock_mapped_bytes(struct mock *m);
/* Called at each deallocation, before anything of it is done, under the mock's lock. */
void mock_on_deallocation(struct mock *m, void (*fn)(void *arg), void *arg);
/* What a power loss would leave of all namespaces: flushed writes, deallocations. In mock_on_deallocation's fn. */
const uint8_t *mock_power_cut(const struct mock *m);
uint8_t *mock_medium(struct mock *m, uint32_t nsid);
/* The name of the n'th mock since mock_begin, and the path of a namespace of it. mock_begin changes what they say. */
const char *mock_name(uint32_t n);
const char *mock_path(uint32_t n, uint32_t nsid);
/* nvme_claim_fn. Closing the transport frees nothing of the mock. */
int mock_claim(void *arg, const char *function, struct nvme_transport *out);

#endif
