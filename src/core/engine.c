/* engine.c - a data path is made and freed, and launches kernels; room for plans. */
#include "core/engine_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/pages.h"
#include "dev/io.h"

#define QUEUE_JOBS 8192u
/* Of plans, where device code runs elsewhere: one of 8192 blocks of 64 objects takes 5 MiB near, 0.6 MiB shared. */
#define ROOM_NEAR_BYTES (24ull << 20)
#define ROOM_SHARED_BYTES (6ull << 20)

void *engine_shared_get(struct engine *e, uint64_t bytes)
{
	return e->exec_ops->memory_get(e->exec, bytes, EXEC_SHARED);
}

void engine_shared_put(struct engine *e, void *p, uint64_t bytes)
{
	if (p)
		e->exec_ops->memory_put(e->exec, p, bytes, EXEC_SHARED);
}

struct ring *engine_ring(struct engine *e) { return e->ring; }

int engine_dead(const struct engine *e) { return port_load_acquire32(&e->dead) != 0; }

void engine_abort(struct engine *e) { port_store_release32(e->abort, 1); }

const char *engine_executor(const struct engine *e) { return e->exec_ops->describe(e->exec); }

void engine_stats(struct engine *e, struct dev_stats *out)
{
	uint64_t *to = (uint64_t *)out;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < ENGINE_STREAMS * e->o.blocks; i++) {
		const struct engine_block *b = e->streams[i / e->o.blocks].blocks[i % e->o.blocks];
		const uint64_t *from = b ? (const uint64_t *)&b->dev.stats : NULL;

		for (size_t k = 0; from && k < sizeof(*out) / sizeof(uint64_t); k++)
			to[k] += __atomic_load_n(&from[k], __ATOMIC_RELAXED);
	}
}

int engine_map(struct engine *e, void *va, uint64_t bytes, int *registered)
{
	int rc;

	pages_advise(va, bytes);
	pthread_mutex_lock(&e->ctrl_lock);
	rc = engine_map_memory(e, va, bytes, registered);
	pthread_mutex_unlock(&e->ctrl_lock);
	return rc;
}

int engine_map_near(struct engine *e, void *va, uint64_t bytes)
{
	if (!e->exec_ops->is_near(va) || !e->exec_ops->is_near((uint8_t *)va + bytes - 1))
		return err_set(-EINVAL, "memory at %p is not the GPU's; use executor host for it", va);
	return map_insert(&e->map, (uint64_t)(uintptr_t)va, bytes, (uint64_t)(uintptr_t)va);
}

int engine_is_mapped(const struct engine *e, uint64_t va, uint64_t bytes)
{
	uint64_t dma;

	return map_find(&e->map, va, bytes, &dma) == 0;
}

int engine_launch(struct engine *e, const struct engine_launch *l)
{
	struct exec_job job = {.kernel = engine_kernel,
	                       .arg = &e->streams[l->stream],
	                       .count = l->n,
	                       .n_blocks = l->blocks,
	                       .gentle = l->gentle,
	                       .blocks = e->streams[l->stream].devs,
	                       .gave_up = engine_kernel_gave_up,
	                       .late = engine_kernel_late,
	                       .lost = engine_kernel_lost,
	                       .ended = engine_kernel_ended,
	                       .deadline_ns = l->deadline_ns,
	                       .done = l->done,
	                       .done_arg = l->done_arg};
	struct exec_event events[DEV_STEPS_MAX];
	int rc;

	if (engine_dead(e))
		return err_set(-ENOTRECOVERABLE,
		               "the lane is dead: a controller did not answer and could not be reset");
	for (uint32_t i = 0; i < l->n; i++) {
		uint32_t *word = (uint32_t *)(uintptr_t)l->iocbs[i]->event;

		l->iocbs[i]->deadline_ns = l->deadline_ns;
		if (word && !(job.n_events && events[job.n_events - 1].word == word))
			events[job.n_events++] = (struct exec_event){word, l->iocbs[i]->event_value};
	}
	job.events = events;
	pthread_mutex_lock(&e->issue_lock);
	ring_issue(e->ring, l->stream, l->iocbs, l->n, &job.sq_first);
	engine_controller_awake(e, 1);
	rc = e->exec_ops->launch(e->exec, l->stream, &job);
	if (rc) {
		ring_unissue(e->ring, l->stream, l->n);
		engine_controller_awake(e, -1);
	}
	pthread_mutex_unlock(&e->issue_lock);
	return rc == -EAGAIN ? err_set(rc, "the executor's queue is full of waiting kernels") : rc;
}

static int blocks_new(struct engine *e)
{
	for (uint32_t s = 0; s < ENGINE_STREAMS; s++) {
		e->streams[s].engine = e;
		e->streams[s].index = s;
		for (uint32_t b = 0; b < e->o.blocks; b++) {
			int rc = engine_block_new(e, s, &e->streams[s].blocks[b]);

			if (rc)
				return rc;
			e->streams[s].devs[b] = &e->streams[s].blocks[b]->dev;
		}
	}
	return 0;
}

/* ---- room for plans ---- */

int engine_remote(const struct engine *e) { return e->exec_ops->remote; }

int engine_in_place(const struct engine *e) { return e->in_place != 0; }

int engine_room_get(struct engine *e, uint64_t shared_bytes, uint64_t near_bytes, struct engine_room *out)
{
	uint64_t shared, near;
	int rc;

	out->near = NULL;
	if (!e->exec_ops->remote) {
		out->shared = calloc(1, shared_bytes);
		return out->shared ? 0 : -ENOMEM;
	}
	pthread_mutex_lock(&e->room_lock);
	rc = plan_room_get(&e->shared_room, shared_bytes, &shared);
	if (!rc) {
		rc = plan_room_get(&e->near_room, near_bytes, &near);
		if (rc)
			plan_room_put(&e->shared_room, shared);
	}
	pthread_mutex_unlock(&e->room_lock);
	if (rc)
		return rc == -ENOSPC ? -EAGAIN : rc;
	out->shared = e->room_shared + shared;
	out->near = e->room_near + near;
	memset(out->shared, 0, shared_bytes);
	return 0;
}

void engine_room_put(struct engine *e, const struct engine_room *room)
{
	if (!e->exec_ops->remote) {
		free(room->shared);
		return;
	}
	if (!room->shared)
		return;
	pthread_mutex_lock(&e->room_lock);
	plan_room_put(&e->shared_room, (uint64_t)((uint8_t *)room->shared - e->room_shared));
	plan_room_put(&e->near_room, (uint64_t)((uint8_t *)room->near - e->room_near));
	pthread_mutex_unlock(&e->room_lock);
}

int engine_copy_in(struct engine *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	return e->exec_ops->copy_in(e->exec, stream, near, shared, bytes);
}

uint64_t engine_near_bytes(const struct engine *e) { return e->exec_ops->near_bytes(e->exec); }

int engine_stream_hold(struct engine *e, struct wire_iocb *io, void *stream, void *event)
{
	uint32_t *word;

	ring_hold(e->ring, io);
	word = (uint32_t *)(uintptr_t)io->event;
	return event ? e->exec_ops->event_write(e->exec, event, word, io->event_value)
	             : e->exec_ops->stream_write(e->exec, stream, word, io->event_value);
}

int engine_stream_wait(struct engine *e, uint32_t iocb, void *stream)
{
	const struct wire_iocb *io = &ring_shared(e->ring)->iocb[iocb];

	return e->exec_ops->stream_wait(e->exec, stream, (uint32_t *)(uintptr_t)io->flag, io->flag_value);
}

/* ---- made and freed ---- */

static void *ring_memory_get(void *arg, uint64_t bytes, int near)
{
	struct engine *e = arg;

	return e->exec_ops->memory_get(e->exec, bytes, near ? EXEC_NEAR : EXEC_SHARED);
}

static void ring_memory_put(void *arg, void *p, uint64_t bytes, int near)
{
	struct engine *e = arg;

	e->exec_ops->memory_put(e->exec, p, bytes, near ? EXEC_NEAR : EXEC_SHARED);
}

/*
 * The medium of a controller that works in place: device code reads it, and writes it before the command that says so,
 * whose data pointer is the place itself.
 */
static int share_medium(struct engine *e)
{
	if (!e->exec_ops->remote || !e->o.ctrl_ops->medium)
		return 0;
	for (uint32_t i = 0; i < e->info.n_ns; i++) {
		uint64_t bytes;
		void *p;
		int rc = e->o.ctrl_ops->medium(e->o.ctrl, i, &p, &bytes);

		if (!rc)
			rc = e->o.ctrl_ops->mem_map(e->o.ctrl, p, bytes, &e->medium[i], NULL);
		if (!rc)
			rc = e->exec_ops->share(e->exec, p, bytes);
		if (rc)
			return rc;
		e->in_place = i + 1;
	}
	return 0;
}

static void unshare_medium(struct engine *e)
{
	uint64_t bytes;
	void *p;

	for (uint32_t i = 0; i < e->in_place; i++)
		if (!e->o.ctrl_ops->medium(e->o.ctrl, i, &p, &bytes)) {
			e->exec_ops->unshare(e->exec, p, bytes);
			e->o.ctrl_ops->mem_unmap(e->o.ctrl, p, bytes);
		}
}

static int engine_memory(struct engine *e)
{
	const struct ring_memory memory = {
	    .get = ring_memory_get, .put = ring_memory_put, .arg = e, .silent = e->exec_ops->remote,
	    .ioctx = e->exec_ops->remote ? e->o.ioctx : 0};
	int rc;

	e->abort = engine_shared_get(e, 64);
	if (!e->abort)
		return err_set(-ENOMEM, "no memory for a lane");
	if (e->exec_ops->remote) {
		e->shared_room.bytes = ROOM_SHARED_BYTES;
		e->near_room.bytes = ROOM_NEAR_BYTES;
		e->room_shared = engine_shared_get(e, ROOM_SHARED_BYTES);
		e->room_near = e->exec_ops->memory_get(e->exec, ROOM_NEAR_BYTES, EXEC_NEAR);
		if (!e->room_shared || !e->room_near)
			return err_set(-ENOMEM, "no pinned or accelerator memory for plans");
	}
	rc = share_medium(e);
	return rc ? rc : ring_new_in(e->o.ring_depth, &memory, &e->ring);
}

int engine_new(const struct engine_opts *o, struct engine **out)
{
	struct exec_opts xo = {.streams = ENGINE_STREAMS,
	                       .blocks = o->blocks,
	                       .queue_jobs = QUEUE_JOBS,
	                       .sm_domain = !o->small,
	                       .small = o->small};
	struct engine *e;
	int rc;

	if (!o->blocks || o->blocks > ENGINE_BLOCKS_MAX || !o->queue_depth || o->queue_depth > 4096)
		return err_set(-EINVAL, "%u executor blocks of depth %u; at most %u of 4096", o->blocks, o->queue_depth,
		               ENGINE_BLOCKS_MAX);
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "no memory for a lane");
	e->o = *o;
	e->info = *o->info;
	e->exec_ops = o->exec_ops ? o->exec_ops : &exec_host;
	pthread_mutex_init(&e->room_lock, NULL);
	pthread_mutex_init(&e->ctrl_lock, NULL);
	pthread_mutex_init(&e->issue_lock, NULL);
	map_init(&e->map);
	rc = e->exec_ops->open(&xo, &e->exec);
	if (!rc)
		rc = engine_memory(e);
	if (!rc)
		rc = blocks_new(e);
	if (rc) {
		engine_free(e);
		return rc;
	}
	*out = e;
	return 0;
}

int engine_free(struct engine *e)
{
	int rc = 0;

	if (!e)
		return 0;
	/* Remote executors find our memory: they go last, but their kernels must have ended. */
	for (uint32_t s = 0; e->exec && e->exec_ops->remote && s < ENGINE_STREAMS; s++)
		if (e->exec_ops->settle(e->exec, s) || engine_dead(e))
			return err_set(-ENOTRECOVERABLE, "an I/O kernel may still run: everything stays as it is");
	if (e->exec && !e->exec_ops->remote) {
		e->exec_ops->close(e->exec);
		e->exec = NULL;
	}
	for (uint32_t i = 0; i < ENGINE_STREAMS * e->o.blocks; i++) {
		struct engine_block **b = &e->streams[i / e->o.blocks].blocks[i % e->o.blocks];

		if (*b && engine_block_free(e, *b))
			rc = -ENOTRECOVERABLE;
		else
			*b = NULL; /* a dead engine stays, and may be freed again */
	}
	if (rc || engine_dead(e))
		return err_set(-ENOTRECOVERABLE, "a controller may still write to registered memory: keep it mapped");
	ring_free(e->ring);
	unshare_medium(e);
	engine_shared_put(e, e->room_shared, ROOM_SHARED_BYTES);
	if (e->room_near)
		e->exec_ops->memory_put(e->exec, e->room_near, ROOM_NEAR_BYTES, EXEC_NEAR);
	engine_shared_put(e, e->abort, 64);
	if (e->exec)
		e->exec_ops->close(e->exec);
	map_free(&e->map);
	pthread_mutex_destroy(&e->room_lock);
	pthread_mutex_destroy(&e->issue_lock);
	pthread_mutex_destroy(&e->ctrl_lock);
	free(e);
	return 0;
}
