/*
 * copy.c - the baselines: what moves the same bytes without I/O issued by the GPU.
 *
 * (a), (b), (c): threads read runs of objects (neighbours on disk in one read) into pinned buffers and copy object by
 * object, one call each or in batches; cuFile reads each object straight into its place. (d): the pool's memory is the
 * pinned DRAM cache: large copies into a staging area in HBM, a kernel scatters. (f): our own store, plans, merging and
 * commands, issued by CPU threads; where the medium is memory the null controller answers them and each layer's bytes
 * go straight between the medium and HBM by batched copies, on a disk they come through pinned memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/gpu/crew.h"

#define HALF_BYTES (4ull << 20)
#define READERS 8u
#define ISSUERS 4u

static struct crew_job job;

static int open_copies(struct lab *b, char *why, size_t why_bytes)
{
	(void)b;
	(void)why;
	(void)why_bytes;
	crew_open(READERS, HALF_BYTES);
	return 0;
}

static void close_copies(struct lab *b)
{
	(void)b;
	crew_close();
}

static void cue(struct lab *b, size_t n)
{
	(void)b;
	(void)n;
	crew_start(&job);
}

static void wait(struct lab *b, uint32_t layer, cudaStream_t compute)
{
	(void)b;
	crew_wait(layer, compute);
}

static void end(struct lab *b)
{
	(void)b;
	crew_join();
}

/* ---- reads and writes of whole runs: (a), (b) ---- */

/* A piece of one layer of a run that is contiguous on disk: all objects of a whole set, or one object's. */
struct stretch {
	const struct run *run;
	uint32_t slots, object, objects;
	uint64_t at, bytes; /* in its file */
};

/* The s-th stretch of run k in a layer; 0: there is none. */
static int stretch_of(const struct lab *b, size_t n, size_t k, uint32_t layer, uint32_t s, struct stretch *out)
{
	const struct run *r = &b->runs[k];
	uint32_t slots = lab_run_slots(b, k, n);
	int whole = slots == r->place.set_slots;

	if (!slots || s >= (whole ? 1 : OBJECTS))
		return 0;
	*out = (struct stretch){.run = r, .slots = slots, .object = s, .objects = whole ? OBJECTS : 1};
	out->at = geom_object_offset(&b->geom, &r->place, layer, s);
	out->bytes = (uint64_t)slots * out->objects * b->geom.pitch_bytes;
	return 1;
}

static uint64_t io(int write, int fd, uint8_t *buffer, uint64_t bytes, uint64_t at)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t n = write ? pwrite(fd, buffer + done, bytes - done, (off_t)(at + done))
		                  : pread(fd, buffer + done, bytes - done, (off_t)(at + done));

		need(n > 0 ? 0 : -EIO, "reading or writing a pool's file");
		done += (uint64_t)n;
	}
	return bytes;
}

/* Copies between a stretch's bytes in host memory and their places in HBM. */
static void stretch_copy(struct crew_worker *w, const struct stretch *s, uint32_t layer, uint8_t *host)
{
	const struct lab *b = job.lab;

	for (uint32_t o = 0; o < s->objects; o++)
		for (uint32_t i = 0; i < s->slots; i++) {
			uint8_t *gpu = lab_object(b, layer, s->object + o, s->run->first + i);
			uint8_t *at = host + (uint64_t)(o * s->slots + i) * b->geom.pitch_bytes;

			crew_piece(w, job.store ? at : gpu, job.store ? gpu : at, b->geom.object_bytes, job.batched);
		}
}

/* What a half holds while it is copied out of HBM. */
struct half {
	struct stretch s[64];
	uint32_t n;
	uint64_t used;
};

static void half_write(struct crew_worker *w, struct half *h, int which)
{
	uint64_t at = 0;

	need_cuda(cudaEventSynchronize(w->copied[which]), "copies");
	for (uint32_t i = 0; i < h->n; at += h->s[i++].bytes)
		io(1, job.lab->fd[h->s[i].run->place.dev], w->buffer[which] + at, h->s[i].bytes, h->s[i].at);
	h->n = 0;
	h->used = 0;
}

/* The half is full, or the layer ends: its copies go; on to the other half when that is free. */
static int half_turn(struct crew_worker *w, struct half *half, int which)
{
	crew_flush(w);
	need_cuda(cudaEventRecord(w->copied[which], w->stream), "an event");
	which = !which;
	if (job.store)
		half_write(w, &half[which], which);
	else
		need_cuda(cudaEventSynchronize(w->copied[which]), "copies");
	half[which].used = 0;
	return which;
}

static void work_runs(struct crew_worker *w, const struct crew_job *j)
{
	struct half half[2] = {{.n = 0}, {.n = 0}};
	struct lab *b = j->lab;
	struct stretch s;
	int h = 0;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		for (size_t k = w->index; k < b->n_runs; k += w->n)
			for (uint32_t i = 0; stretch_of(b, j->n, k, layer, i, &s); i++) {
				uint8_t *host;

				if (half[h].used + s.bytes > w->half_bytes || half[h].n == 64)
					h = half_turn(w, half, h);
				host = w->buffer[h] + half[h].used;
				half[h].used += s.bytes;
				if (j->store)
					half[h].s[half[h].n++] = s;
				else
					io(0, b->fd[s.run->place.dev], host, s.bytes, s.at);
				stretch_copy(w, &s, layer, host);
			}
		if (!j->store)
			crew_landed(w, layer);
	}
	for (int i = 0; i < 2 && j->store; i++)
		h = half_turn(w, half, h);
}

static void prepare_single(struct lab *b, size_t n)
{
	job = (struct crew_job){.work = work_runs, .lab = b, .n = n};
}

static void prepare_batch(struct lab *b, size_t n)
{
	job = (struct crew_job){.work = work_runs, .lab = b, .n = n, .batched = 1};
}

static double run_store(struct lab *b, size_t n, uint64_t *salt)
{
	uint64_t t0;

	*salt = ++b->seed * 1000003u;
	lab_fill(b, n, *salt);
	t0 = now_ns();
	job.store = 1;
	crew_start(&job);
	crew_join();
	return (double)(now_ns() - t0) * 1e-9;
}

static double store_single(struct lab *b, size_t n, uint64_t *salt)
{
	prepare_single(b, n);
	return run_store(b, n, salt);
}

static double store_batch(struct lab *b, size_t n, uint64_t *salt)
{
	prepare_batch(b, n);
	return run_store(b, n, salt);
}

const struct system copy_single = {.name = "(a) reads, a copy per object",
                                   .label = "(a) read, copy each",
                                   .open = open_copies,
                                   .close = close_copies,
                                   .prepare = prepare_single,
                                   .cue = cue,
                                   .wait = wait,
                                   .end = end,
                                   .store = store_single};
const struct system copy_batch = {.name = "(b) reads, batched copies",
                                  .label = "(b) read, batched",
                                  .open = open_copies,
                                  .close = close_copies,
                                  .prepare = prepare_batch,
                                  .cue = cue,
                                  .wait = wait,
                                  .end = end,
                                  .store = store_batch};

/* ---- cuFile: (c) ---- */

static int open_cufile(struct lab *b, char *why, size_t why_bytes)
{
	int rc = cufile_open(b, why, why_bytes);

	if (!rc)
		crew_open(READERS, 0);
	return rc;
}

static void close_cufile(struct lab *b)
{
	(void)b;
	crew_close();
	cufile_close();
}

static void work_cufile(struct crew_worker *w, const struct crew_job *j)
{
	const struct lab *b = j->lab;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		for (size_t k = w->index; k < b->n_runs; k += w->n)
			for (uint32_t i = 0; i < OBJECTS * lab_run_slots(b, k, j->n); i++) {
				struct geom_place p = b->runs[k].place;
				uint64_t bytes = b->geom.object_bytes;

				p.index += i / OBJECTS;
				need(cufile_read(
				         p.dev, lab_object(b, layer, i % OBJECTS, b->runs[k].first + i / OBJECTS),
				         bytes, geom_object_offset(&b->geom, &p, layer, i % OBJECTS)) == (int64_t)bytes
				         ? 0
				         : -EIO,
				     "cuFileRead");
			}
		crew_landed(w, layer);
	}
}

static void prepare_cufile(struct lab *b, size_t n)
{
	job = (struct crew_job){.work = work_cufile, .lab = b, .n = n};
}

const struct system copy_cufile = {.name = "(c) cuFile",
                                   .label = "(c) cuFile",
                                   .open = open_cufile,
                                   .close = close_cufile,
                                   .prepare = prepare_cufile,
                                   .cue = cue,
                                   .wait = wait,
                                   .end = end};

/* ---- a pinned DRAM cache: (d) ---- */

static struct {
	uint8_t *staging[2];
	uint64_t *at; /* of each block's objects in the staging area; on the GPU */
	cudaStream_t scatter;
	cudaEvent_t copied[2], free[2];
	uint32_t *flags, seq; /* pinned: [LAYERS] */
	size_t prepared;
} dram;

static int open_dram(struct lab *b, char *why, size_t why_bytes)
{
	if (!b->medium[0]) {
		snprintf(why, why_bytes, "the pool is not in memory");
		return -ENOTSUP;
	}
	crew_open(1, 0);
	for (int h = 0; h < 2; h++) {
		need_cuda(cudaMalloc((void **)&dram.staging[h], b->n * OBJECTS * b->geom.pitch_bytes), "staging area");
		need_cuda(cudaEventCreateWithFlags(&dram.copied[h], cudaEventDisableTiming), "an event");
		need_cuda(cudaEventCreateWithFlags(&dram.free[h], cudaEventDisableTiming), "an event");
	}
	need_cuda(cudaMalloc((void **)&dram.at, b->n * OBJECTS * sizeof(*dram.at)), "places");
	need_cuda(cudaStreamCreateWithFlags(&dram.scatter, cudaStreamNonBlocking), "a stream");
	need_cuda(cudaHostAlloc((void **)&dram.flags, LAYERS * sizeof(*dram.flags), cudaHostAllocMapped), "flags");
	memset(dram.flags, 0, LAYERS * sizeof(*dram.flags));
	dram.seq = 0;
	dram.prepared = 0;
	return 0;
}

static void close_dram(struct lab *b)
{
	(void)b;
	crew_close();
	for (int h = 0; h < 2; h++) {
		cudaFree(dram.staging[h]);
		cudaEventDestroy(dram.copied[h]);
		cudaEventDestroy(dram.free[h]);
	}
	cudaFree(dram.at);
	cudaStreamDestroy(dram.scatter);
	cudaFreeHost(dram.flags);
}

/* Copies of one layer's stretches, one after the other, between the medium and the staging area. */
static void dram_copies(struct crew_worker *w, const struct crew_job *j, uint32_t layer, uint8_t *staging)
{
	const struct lab *b = j->lab;
	uint64_t used = 0;
	struct stretch s;

	for (size_t k = 0; k < b->n_runs; k++)
		for (uint32_t i = 0; stretch_of(b, j->n, k, layer, i, &s); i++, used += s.bytes) {
			uint8_t *host = b->medium[s.run->place.dev] + s.at;

			crew_piece(w, j->store ? host : staging + used, j->store ? staging + used : host, s.bytes, 1);
		}
	crew_flush(w);
}

static void dram_kernel(const struct crew_job *j, uint32_t layer, uint8_t *staging)
{
	const struct lab *b = j->lab;
	const struct tutti_kv_layout *kv = &b->r.kv[0];
	uint8_t *base = b->r.accel[0] + ((uint8_t *)kv->layer_base[layer] - b->r.memory[0]);

	kernel_scatter(staging, dram.at, base, kv->outer_stride, b->geom.object_bytes, b->blocks_gpu, j->n, j->store,
	               dram.scatter);
}

static void work_dram(struct crew_worker *w, const struct crew_job *j)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		int h = layer & 1;

		/* One stream hands the half to the other, and gets it back. */
		if (j->store) {
			need_cuda(cudaStreamWaitEvent(dram.scatter, dram.copied[h], 0), "an event");
			dram_kernel(j, layer, dram.staging[h]);
			need_cuda(cudaEventRecord(dram.free[h], dram.scatter), "an event");
			need_cuda(cudaStreamWaitEvent(w->stream, dram.free[h], 0), "an event");
			dram_copies(w, j, layer, dram.staging[h]);
			need_cuda(cudaEventRecord(dram.copied[h], w->stream), "an event");
			continue;
		}
		need_cuda(cudaStreamWaitEvent(w->stream, dram.free[h], 0), "an event");
		dram_copies(w, j, layer, dram.staging[h]);
		need_cuda(cudaEventRecord(dram.copied[h], w->stream), "an event");
		need_cuda(cudaStreamWaitEvent(dram.scatter, dram.copied[h], 0), "an event");
		dram_kernel(j, layer, dram.staging[h]);
		need_cuda(cudaEventRecord(dram.free[h], dram.scatter), "an event");
		stream_write(dram.scatter, &dram.flags[layer], dram.seq);
	}
	need_cuda(cudaStreamSynchronize(dram.scatter), "scattering");
}

static void prepare_dram(struct lab *b, size_t n)
{
	uint64_t *at, used = 0;
	struct stretch s;

	job = (struct crew_job){.work = work_dram, .lab = b, .n = n};
	dram.seq++;
	if (dram.prepared == n)
		return;
	at = malloc(n * OBJECTS * sizeof(*at));
	for (size_t k = 0; k < b->n_runs; k++)
		for (uint32_t i = 0; stretch_of(b, n, k, 0, i, &s); i++, used += s.bytes)
			for (uint32_t o = 0; o < s.objects; o++)
				for (uint32_t m = 0; m < s.slots; m++)
					at[(s.run->first + m) * OBJECTS + s.object + o] =
					    used + (uint64_t)(o * s.slots + m) * b->geom.pitch_bytes;
	need_cuda(cudaMemcpy(dram.at, at, n * OBJECTS * sizeof(*at), cudaMemcpyHostToDevice), "places");
	free(at);
	dram.prepared = n;
}

static void wait_dram(struct lab *b, uint32_t layer, cudaStream_t compute)
{
	(void)b;
	stream_wait(compute, &dram.flags[layer], dram.seq);
}

static double store_dram(struct lab *b, size_t n, uint64_t *salt)
{
	dram.prepared = 0;
	prepare_dram(b, n);
	return run_store(b, n, salt);
}

const struct system copy_dram = {.name = "(d) pinned DRAM, layer-wise",
                                 .label = "(d) DRAM, layer-wise",
                                 .open = open_dram,
                                 .close = close_dram,
                                 .prepare = prepare_dram,
                                 .cue = cue,
                                 .wait = wait_dram,
                                 .end = end,
                                 .store = store_dram};

/* ---- our commands, issued by CPU threads: (f) ---- */

static struct {
	struct tutti_lane *lane;
	struct lab_plan plan;
	uint8_t *memory; /* pinned: what the lane reads into, on a disk */
} cpu;

static int open_cpu(struct lab *b, char *why, size_t why_bytes)
{
	struct tutti_lane_opts o = TUTTI_LANE_OPTS_INIT;
	struct tutti_kv_layout kv = b->r.kv[0];
	void *base[LAYERS];

	(void)why;
	(void)why_bytes;
	o.paths = b->r.paths;
	o.n_paths = b->r.shape.devices;
	o.controller = b->medium[0] ? TUTTI_CTRL_NULL : TUTTI_CTRL_VIRT;
	o.executor = TUTTI_EXEC_HOST;
	o.sms = ISSUERS;
	o.deadline_ns = WAIT_NS;
	need(tutti_lane_open(&o, &b->r.digest, &cpu.lane), "a lane on the host");
	cpu.memory = NULL;
	for (uint32_t l = 0; l < LAYERS; l++)
		base[l] = kv.layer_base[l]; /* nothing goes there: the null controller moves no data */
	if (!b->medium[0]) {
		need_cuda(cudaHostAlloc((void **)&cpu.memory, b->r.memory_bytes, 0), "pinned memory");
		for (uint32_t l = 0; l < LAYERS; l++)
			base[l] = cpu.memory + ((uint8_t *)kv.layer_base[l] - b->r.memory[0]);
	}
	kv.layer_base = base;
	need(tutti_lane_register(cpu.lane, &kv), "register");
	crew_open(ISSUERS, 0);
	return 0;
}

static void close_cpu(struct lab *b)
{
	(void)b;
	crew_close();
	need(tutti_lane_close(cpu.lane), "closing a lane");
	if (cpu.memory)
		cudaFreeHost(cpu.memory);
}

/* A worker's share of a layer, between HBM and what the lane's commands are about. */
static void cpu_layer(struct crew_worker *w, const struct crew_job *j, uint32_t layer)
{
	const struct lab *b = j->lab;
	struct stretch s;

	for (size_t k = w->index; k < b->n_runs; k += w->n)
		for (uint32_t i = 0; stretch_of(b, j->n, k, layer, i, &s); i++) {
			if (!cpu.memory) {
				stretch_copy(w, &s, layer, b->medium[s.run->place.dev] + s.at);
				continue;
			}
			for (uint32_t m = 0; m < s.objects * s.slots; m++) {
				uint8_t *gpu = lab_object(b, layer, s.object + m / s.slots, s.run->first + m % s.slots);
				uint8_t *host = cpu.memory + (gpu - b->r.accel[0]);

				crew_piece(w, j->store ? host : gpu, j->store ? gpu : host, b->geom.object_bytes, 1);
			}
		}
	crew_landed(w, layer);
}

static void work_cpu(struct crew_worker *w, const struct crew_job *j)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		if (!j->store)
			need(tutti_wait_layer(cpu.plan.p, layer, now_ns() + WAIT_NS), "layer");
		cpu_layer(w, j, layer);
	}
}

static void prepare_cpu(struct lab *b, size_t n)
{
	lab_plan(b, cpu.lane, n, &cpu.plan);
	job = (struct crew_job){.work = work_cpu, .lab = b, .n = n, .batched = 1};
}

static void cue_cpu(struct lab *b, size_t n)
{
	need(tutti_retrieve(cpu.plan.p), "retrieve");
	cue(b, n);
}

static void end_cpu(struct lab *b)
{
	end(b);
	lab_plan_end(b, &cpu.plan);
}

/* A layer's commands go when its bytes are out of HBM; the next layers' are on their way. */
static double store_cpu(struct lab *b, size_t n, uint64_t *salt)
{
	uint64_t t0;

	lab_plan_store(b, cpu.lane, n, &cpu.plan, 1);
	*salt = b->salt;
	job = (struct crew_job){.work = work_cpu, .lab = b, .n = n, .store = 1, .batched = 1};
	t0 = now_ns();
	crew_start(&job);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		crew_wait_here(layer);
		need(tutti_store_layer(cpu.plan.p, layer), "store");
	}
	end_cpu(b);
	return (double)(now_ns() - t0) * 1e-9;
}

const struct system copy_cpu_issue = {.name = "(f) our commands by CPU threads, batched copies",
                                      .label = "(f) CPU issues",
                                      .open = open_cpu,
                                      .close = close_cpu,
                                      .prepare = prepare_cpu,
                                      .cue = cue_cpu,
                                      .wait = wait,
                                      .end = end_cpu,
                                      .store = store_cpu};
