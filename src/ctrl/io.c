/* io.c - what the backends share: digesting results, statuses of errnos, copies through one buffer. */
#include "ctrl/soft.h"

#include <errno.h>
#include <string.h>

#define TRIES_MAX 64u

uint32_t ctrl_io_status(uint8_t opcode, int error)
{
	switch (error) {
	case 0:
		return NVME_SC_SUCCESS;
	case EIO:
	case EREMOTEIO:
	case ENODATA: /* the block layer's word for a medium error */
	case EBADMSG:
	case EUCLEAN:
	case EILSEQ:
	case ETIMEDOUT:
		return opcode == NVME_CMD_READ ? NVME_SC_READ_ERROR : NVME_SC_WRITE_FAULT;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return NVME_SC_CAPACITY;
	case EFAULT:
	case EINVAL:
		return NVME_SC_DATA_TRANSFER;
	case EROFS:
	case EPERM:
	case EBADF:
		return opcode == NVME_CMD_READ ? NVME_SC_READ_ERROR : CTRL_SC_READ_ONLY;
	case ECANCELED:
		return NVME_SC_ABORTED_SQ_DELETED;
	default:
		return NVME_SC_INTERNAL;
	}
}

void ctrl_io_begin(struct ctrl_io *io)
{
	io->rest = io->iov;
	io->n_rest = io->n_iov;
	io->done_bytes = 0;
	io->tries = 0;
	io->status = 0;
	io->next = NULL;
	io->priv = NULL;
}

static void consume(struct ctrl_io *io, uint64_t bytes)
{
	io->done_bytes += (uint32_t)bytes;
	while (bytes) {
		uint64_t n = bytes < io->rest->iov_len ? bytes : io->rest->iov_len;

		io->rest->iov_base = (char *)io->rest->iov_base + n;
		io->rest->iov_len -= n;
		bytes -= n;
		if (!io->rest->iov_len) {
			io->rest++;
			io->n_rest--;
		}
	}
}

int ctrl_io_result(struct ctrl_io *io, int64_t result, uint32_t align_bytes)
{
	uint32_t left = io->bytes - io->done_bytes;

	if (result == -EINTR || result == -EAGAIN) {
		if (++io->tries < TRIES_MAX)
			return 0;
		result = -EIO;
	}
	if (result < 0 || io->opcode == NVME_CMD_FLUSH) {
		io->status = ctrl_io_status(io->opcode, result < 0 ? (int)-result : 0);
		return 1;
	}
	if (result > left) {
		io->status = NVME_SC_INTERNAL;
		return 1;
	}
	if (result == left) {
		io->done_bytes += left;
		return 1;
	}
	/* Short. Nothing at all is the end of a file that was cut behind our back, or a disk that takes no more. */
	if (align_bytes > 1)
		result -= result % align_bytes;
	if (result == 0 && ++io->tries >= 3) {
		io->status = ctrl_io_status(io->opcode, EIO);
		return 1;
	}
	consume(io, (uint64_t)result);
	return 0;
}

void ctrl_io_gather(const struct ctrl_io *io, void *to)
{
	char *p = to;

	for (uint32_t i = 0; i < io->n_iov; i++) {
		memcpy(p, io->iov[i].iov_base, io->iov[i].iov_len);
		p += io->iov[i].iov_len;
	}
}

void ctrl_io_scatter(const struct ctrl_io *io, const void *from)
{
	const char *p = from;

	for (uint32_t i = 0; i < io->n_iov; i++) {
		memcpy(io->iov[i].iov_base, p, io->iov[i].iov_len);
		p += io->iov[i].iov_len;
	}
}
