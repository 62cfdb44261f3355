/* standin.c - the stand-in for an engine (include/tutti/standin.h): its compute joined with plans. */
#include "tutti/standin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "exec/exec.h"
#include "exec/standin.h"

struct tutti_standin {
	struct standin s;
};

struct tutti_standin_worker {
	struct standin_worker w;
};

static const struct standin_ops *choose(enum tutti_executor executor)
{
	char why[160];

	if (executor == TUTTI_EXEC_HOST || (executor == TUTTI_EXEC_AUTO && exec_cuda_probe(why, sizeof(why))))
		return &standin_host;
	return standin_cuda();
}

int tutti_standin_open(enum tutti_executor executor, uint64_t bytes, uint32_t io_sms, struct tutti_standin **out)
{
	const struct standin_ops *ops = choose(executor);
	struct tutti_standin *s;
	char why[160];
	int rc;

	if (!out || !bytes || bytes > SIZE_MAX / 2)
		return err_set(-EINVAL, "tutti_standin_open: NULL, or %llu bytes", (unsigned long long)bytes);
	if (!ops) {
		rc = exec_cuda_probe(why, sizeof(why));
		return err_set(rc, "executor cuda: %s; use executor host", why);
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(-ENOMEM, "tutti_standin_open: no memory");
	s->s = (struct standin){.ops = ops, .bytes = bytes, .io_sms = io_sms};
	rc = ops->open(&s->s);
	if (rc) {
		tutti_standin_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void tutti_standin_close(struct tutti_standin *s)
{
	if (s)
		s->s.ops->close(&s->s);
	free(s);
}

enum tutti_executor tutti_standin_executor(const struct tutti_standin *s) { return s->s.ops->executor; }

void *tutti_standin_memory(const struct tutti_standin *s) { return s->s.memory; }

const char *tutti_standin_describe(const struct tutti_standin *s) { return s->s.text; }

int tutti_standin_clear(struct tutti_standin *s) { return s->s.ops->clear(&s->s); }

/* ---- a worker ---- */

int tutti_standin_worker_open(struct tutti_standin *s, const struct tutti_kv_layout *layout, size_t blocks_max,
                              struct tutti_standin_worker **out)
{
	struct tutti_standin_worker *w;
	int rc;

	if (!s || !layout || !out || !blocks_max || !layout->layers || !layout->outer_count || !layout->inner_count)
		return err_set(-EINVAL, "tutti_standin_worker_open: NULL, or no layers or blocks");
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(-ENOMEM, "tutti_standin_worker_open: no memory");
	w->w = (struct standin_worker){.standin = &s->s, .layout = *layout, .blocks_max = blocks_max};
	rc = s->s.ops->worker_open(&w->w);
	if (rc) {
		tutti_standin_worker_close(w);
		return rc;
	}
	*out = w;
	return 0;
}

void tutti_standin_worker_close(struct tutti_standin_worker *w)
{
	if (w)
		w->w.standin->ops->worker_close(&w->w);
	free(w);
}

const char *tutti_standin_worker_describe(const struct tutti_standin_worker *w) { return w->w.text; }

int tutti_standin_begin(struct tutti_standin_worker *w, const struct tutti_key *keys, const uint64_t *blocks, size_t n)
{
	if (!n || n > w->w.blocks_max)
		return err_set(-EINVAL, "tutti_standin_begin: %zu blocks; at most %zu", n, w->w.blocks_max);
	for (size_t i = 0; i < n; i++) {
		memcpy(&w->w.blocks[i].key, keys[i].b, sizeof(w->w.blocks[i].key));
		w->w.blocks[i].block = blocks[i];
	}
	w->w.n = n;
	memset(w->w.stamps, 0, 2 * w->w.layout.layers * sizeof(*w->w.stamps));
	return w->w.standin->ops->begin(&w->w);
}

int tutti_standin_wait_layer(struct tutti_standin_worker *w, struct tutti_plan *p, uint32_t layer, uint64_t deadline_ns)
{
	const struct standin_ops *ops = w->w.standin->ops;
	uint64_t *at = &w->w.stamps[2 * (size_t)layer];
	int rc, after;

	if (layer >= w->w.layout.layers)
		return err_set(-EINVAL, "tutti_standin_wait_layer: layer %u of %u", layer, w->w.layout.layers);
	rc = ops->stamp(&w->w, at);
	if (rc)
		return rc;
	rc = w->w.stream ? tutti_wait_layer_stream(p, layer, w->w.stream) : tutti_wait_layer(p, layer, deadline_ns);
	after = ops->stamp(&w->w, at + 1);
	return rc ? rc : after;
}

static int run(struct tutti_standin_worker *w, uint32_t layer, size_t first, size_t n, enum standin_do what)
{
	const struct tutti_kv_layout *l = &w->w.layout;
	struct standin_job j;

	if (layer >= l->layers || first > w->w.n || n > w->w.n - first)
		return err_set(-EINVAL, "stand-in: layer %u of %u, blocks %zu and %zu more of %zu", layer, l->layers,
		               first, n, w->w.n);
	j = (struct standin_job){.layer_base = l->layer_base[layer],
	                         .block_stride = l->block_stride,
	                         .outer_stride = l->outer_stride,
	                         .inner_stride = l->inner_stride,
	                         .segment_bytes = l->segment_bytes,
	                         .outer_count = l->outer_count,
	                         .inner_count = l->inner_count,
	                         .layer = layer,
	                         .n = (uint32_t)n,
	                         .what = what};
	return w->w.standin->ops->run(&w->w, &j, first);
}

int tutti_standin_check(struct tutti_standin_worker *w, uint32_t layer, size_t first, size_t n)
{
	return run(w, layer, first, n, STANDIN_CHECK);
}

int tutti_standin_compute(struct tutti_standin_worker *w, uint32_t layer, size_t first, size_t n)
{
	return run(w, layer, first, n, STANDIN_COMPUTE);
}

int tutti_standin_store_layer(struct tutti_standin_worker *w, struct tutti_plan *p, uint32_t layer)
{
	return w->w.stream ? tutti_store_layer_stream(p, layer, w->w.stream) : tutti_store_layer(p, layer);
}

int tutti_standin_end(struct tutti_standin_worker *w, uint64_t deadline_ns)
{
	return w->w.standin->ops->end(&w->w, deadline_ns);
}

uint64_t tutti_standin_wrong(const struct tutti_standin_worker *w, size_t i, uint64_t *first)
{
	if (first)
		*first = w->w.found[i].first;
	return w->w.found[i].wrong;
}

uint64_t tutti_standin_waited_ns(const struct tutti_standin_worker *w, uint32_t layer)
{
	const uint64_t *at = &w->w.stamps[2 * (size_t)layer];

	return at[1] > at[0] ? at[1] - at[0] : 0;
}
