/* nvme_int.h - what nvme_admin.c, nvme_queue.c and nvme_identify.c share. All under the function's lock. */
#ifndef TUTTI_CTRL_NVME_INT_H
#define TUTTI_CTRL_NVME_INT_H

#include "ctrl/nvme_admin.h"

/* nvme_admin without the lock. */
int nvme_admin_run(struct nvme_fn *f, const struct nvme_sqe *e, uint64_t deadline_ns, uint32_t *dw0);
/* From any state: disabled, then enabled with empty admin queues; the number of I/O queues is asked for again. */
int nvme_fn_up(struct nvme_fn *f);
/* Takes memory from the function and resets it. 0: no memory of ours can change any more; all queue pairs are gone. */
int nvme_fn_fence(struct nvme_fn *f);
int nvme_fn_identify(struct nvme_fn *f);
/* Asks for I/O queues. */
int nvme_fn_features(struct nvme_fn *f);
/* Wakes everybody who sleeps on a queue pair. */
void nvme_wake_all(struct nvme_fn *f);
int nvme_irq_start(struct nvme_fn *f);
void nvme_irq_stop(struct nvme_fn *f);
uint32_t *nvme_doorbell(const struct nvme_fn *f, uint32_t qid, int cq);
/* Deletes the controller's side of all queue pairs that are left. Best effort, at close. */
void nvme_queues_delete(struct nvme_fn *f);

#endif
