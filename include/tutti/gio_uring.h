/*
 * gio_uring.h - GPU-initiated I/O, raw: io_uring's idea with a GPU (or CPU threads, where there is none) at the
 * kernel's end.
 *
 * The CPU fills IOCBs of up to 2048 IOCTX (memory, offset on a device, length) and cues an I/O kernel; the kernel
 * builds NVMe commands, submits them on its own queue pairs and completes one IOCB at a time. The paper's four calls
 * (arXiv 2605.03375, section 4.2): gio_init_queue, gio_get_iocb, gio_issue_io, gio_wait_cqe. There is no checksum, no
 * index and no pool here: those are tutti.h's.
 *
 * Threads: one thread at a time, except gio_wait_cqe, which any number may call.
 */
#ifndef TUTTI_GIO_URING_H
#define TUTTI_GIO_URING_H

#include <tutti/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GIO_IOCTX_MAX 2048

struct gio;

enum gio_op { GIO_READ = 1, GIO_WRITE = 2 };

/* One transfer. Plain data shared with the kernel. */
struct gio_ioctx {
	uint64_t mem;          /* address in registered memory; on the host aligned as gio_info says */
	uint64_t offset_bytes; /* on the device; whole logical blocks */
	uint32_t bytes;
	uint16_t dev;          /* index of the path given to gio_init_queue */
	uint16_t op;           /* enum gio_op */
	int32_t status;        /* out: 0, negative errno, NVMe status */
	uint32_t rsvd;
};

struct gio_opts {
	uint32_t size;
	const char *const *paths; /* files or block devices */
	uint32_t n_paths;
	enum tutti_controller controller;
	struct tutti_model_timing timing;
	uint32_t depth;           /* IOCBs out at once: a power of two, at most 65536; 0: 256 */
	uint32_t queue_depth;     /* commands in flight of each block; 0: 64 */
	uint32_t sms;             /* executor blocks; 0: 1 */
	uint64_t deadline_ns;     /* of a kernel; 0: 30 s */
	int read_only;
	int no_sgl;
	/* AUTO: host threads. CUDA: the GPU issues the I/O, and all memory is its own; see gio_register. */
	enum tutti_executor executor;
	uint64_t bounce_bytes;    /* CUDA: bound of the pinned buffers that data goes through; 0: 16 MiB */
};
#define GIO_OPTS_INIT {.size = sizeof(struct gio_opts)}

struct gio_info {
	uint32_t lba_bytes, mem_align_bytes, mdts_bytes;
	uint32_t n_dev;
	uint64_t capacity_bytes[TUTTI_DEVICES_MAX];
	char controller[40];
	char executor[40];
};

/* Start only when *word >= value (host threads), or when what the event stands for is over (GPU). NULL: at once. */
struct gio_event {
	const uint32_t *word;
	uint32_t value;
	void *cuda_event; /* CUevent or cudaEvent_t, recorded by now; word is then NULL */
};

struct gio_result {
	int32_t status;  /* first failure of any IOCTX; 0: none */
	uint32_t failed; /* IOCTX that failed; each has its status */
};

/* Opens the devices, controller and executor. -EINVAL, -ENOMEM, or why a path can't be opened. */
int gio_init_queue(const struct gio_opts *opts, struct gio **out);
/* -ENOTRECOVERABLE: a controller may still write to registered memory. */
int gio_close(struct gio *g);
/* ..._sized: of a caller whose header's struct has `bytes`; never writes beyond them. -EINVAL: NULL. */
int gio_get_info_sized(struct gio *g, struct gio_info *out, size_t bytes);
static inline int gio_get_info(struct gio *g, struct gio_info *out)
{
	return gio_get_info_sized(g, out, sizeof(*out));
}
/*
 * Makes memory usable in IOCTX, until close; it must stay mapped as long. Before the first issue. -EINVAL: with the
 * GPU, memory that is not the GPU's; the kernel copies it to and from bounded pinned buffers, which is what the
 * controller reaches.
 */
int gio_register(struct gio *g, void *mem, uint64_t bytes);
/*
 * An IOCB of n IOCTX: *id, and *ioctx to be filled. -EAGAIN: all are out. -EINVAL: n is 0 or above GIO_IOCTX_MAX.
 * -ENOTSUP: an event of the other executor's kind.
 */
int gio_get_iocb(struct gio *g, uint32_t n, const struct gio_event *event, uint32_t *id, struct gio_ioctx **ioctx);
/*
 * Cues one kernel for IOCBs ids[0..n), n <= 1024, in order, on at most sms executor blocks (0: all that were opened;
 * the host executor always uses all). It starts when the events of all of them are there (host: they have the same
 * one); one that does not come by the deadline fails them. Each is issued once. -EAGAIN: queue full. -EINVAL: the
 * message names the IOCB. In both cases nothing was issued.
 */
int gio_issue_io(struct gio *g, const uint32_t *ids, uint32_t n, uint32_t sms);
/* Waits for an issued IOCB. 0 and *out; -ETIMEDOUT at deadline_ns (absolute). The IOCTX stay readable until
 * gio_put_iocb. */
int gio_wait_cqe(struct gio *g, uint32_t id, uint64_t deadline_ns, struct gio_result *out);
/*
 * The same on the GPU: `stream` (a CUstream or cudaStream_t) goes on when the IOCB is complete, whatever came of it;
 * the caller does not wait. -EINVAL: not issued. -ENOTSUP: host threads. -EBUSY: the stream is captured into a graph.
 */
int gio_wait_stream(struct gio *g, uint32_t id, void *stream);
/* Gives an IOCB back: one that is complete, or was never issued. One in flight, or no IOCB of yours, is left alone. */
void gio_put_iocb(struct gio *g, uint32_t id);

#ifdef __cplusplus
}
#endif
#endif
