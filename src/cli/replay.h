/*
 * replay.h - a stand-in for an LLM engine, which replays requests through store and data path.
 *
 * Workers (one thread and one lane each) take requests in order. A request is lookup, then chunk by chunk: blocks of
 * paged memory, a plan that retrieves what the pool has, a reservation and a plan that store what it has not; then
 * layer by layer: wait for the layer, check every byte of it, "compute" the missing blocks' bytes, store the layer.
 * While one layer is checked and computed the next ones load. On a GPU all of that goes into a stream, and the worker
 * is ahead of it (tutti/standin.h). A chunk is bounded by the paged memory over the number of workers, so memory does
 * not grow with the trace.
 *
 * What is measured goes to a shared mapping (replay_log), so that it outlives a worker process that is killed.
 */
#ifndef TUTTI_CLI_REPLAY_H
#define TUTTI_CLI_REPLAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "cli/arena.h"
#include "cli/models.h"
#include "cli/trace.h"
#include <tutti/tutti.h>

#define REPLAY_WORKERS_MAX 16u
#define REPLAY_CHUNK_BLOCKS_MAX 2048u

struct replay_opts {
	const char *const *paths;
	uint32_t n_paths;
	struct model model;
	uint32_t block_tokens;
	uint64_t scale; /* objects are this many times smaller */
	uint32_t workers;
	uint64_t kv_bytes; /* paged memory */
	uint64_t seed;
	int per_layer;     /* tutti_retrieve_layer for each layer instead of one tutti_retrieve */
	int metadata_only; /* no byte is moved: null lanes, a header's worth of object */
	int paced;         /* requests wait for their arrival time */
	struct tutti_lane_opts lane; /* paths, rank: set by the engine; executor: of KV memory and compute too */
	uint64_t
	    kill_after_blocks; /* SIGKILL to itself in the middle of a store, after that many stored blocks; 0: never */
};

/* One request: written by its worker as it goes. Times are CLOCK_MONOTONIC; 0: did not happen. */
struct replay_sample {
	uint64_t start_ns, end_ns;
	uint64_t load_start_ns, load_end_ns, store_start_ns, store_end_ns;
	uint32_t document, turn;
	uint32_t tokens, hit_tokens, output_tokens;
	uint32_t blocks, hit_blocks, stored_blocks, failed_blocks, chunks;
	/*
	 * Blocks that were computed and not stored: another request was storing them, or one before them; no room, or
	 * none for their parent; the lane's bounded queue was full; writing failed.
	 */
	uint32_t others_blocks, no_room_blocks, dropped_blocks, unwritten_blocks;
	uint32_t layers, layers_waited;
	uint32_t errors;
	uint64_t bytes_in, bytes_out, checked_bytes, mismatched_bytes;
	uint64_t wait_ns, compute_cpu_ns; /* engine: keys, filling and comparing; what a GPU would do */
};

struct replay_busy { /* time with at least one transfer of a direction under way */
	uint64_t total_ns, since_ns;
	uint32_t under_way;
};

struct replay_log {
	atomic_uint_least64_t next; /* request to be taken next */
	atomic_uint_least64_t stored_blocks; /* published */
	atomic_int stop;
	int fatal;             /* what ended the run early */
	char first_error[512];
	int first_result; /* of that error */
	uint64_t start_ns, end_ns, cpu_ns; /* of the whole run, all threads */
	uint64_t cpu_start_ns;             /* what the process had used before */
	struct replay_busy in, out;
	struct tutti_lane_info lane_info;
	struct tutti_lane_stats lane_stats; /* all lanes together */
	char memory[240], first_wrong[160]; /* whose it is and who computes; where the first wrong byte was, or empty */
	struct tutti_ns_info ns_info;       /* at the end */
	struct tutti_pool_info pool_info;   /* at the end */
	size_t n_samples;
	struct replay_sample samples[];
};

struct replay;

struct worker {
	struct replay *e;
	struct tutti_lane *lane;
	struct tutti_standin_worker *standin;
	pthread_t thread;
	int started;
	struct tutti_key *keys; /* of the request at hand */
	uint32_t *tokens;
	uint64_t *blocks;
	uint8_t *blob;
	size_t blob_bytes;
};

struct replay {
	struct replay_opts o;
	const struct trace *trace;
	struct replay_log *log;
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_key ns_digest;
	size_t until; /* requests before this one are to be run */
	struct arena arena;
	uint64_t object_bytes;
	uint32_t layers, objects;
	uint32_t chunk_blocks;
	pthread_mutex_t lock; /* of log's busy, first_error and first_wrong */
	struct worker workers[REPLAY_WORKERS_MAX];
};

/* A shared mapping with room for n samples, zeroed; NULL: no memory. */
struct replay_log *replay_log_new(size_t n_samples);
void replay_log_free(struct replay_log *log);

/* Bytes of one object for a model, and of the slot a block takes on disk (at least). 0: the scale is larger than the
 * object. */
uint64_t replay_object_bytes(const struct replay_opts *o);
/* The namespace that a model's blocks go to, without the facts of the memory. `name` keeps its text. */
void replay_spec(const struct replay_opts *o, char name[96], struct tutti_ns_spec *spec);

/* Opens pool, namespace, memory, lanes. The error is in tutti_error_message() or `why`. */
int replay_open(struct replay *e, const struct replay_opts *o, const struct trace *t, tutti_progress_fn progress,
                char *why, size_t why_bytes);
/*
 * Runs requests [from, to) of the trace; 0 also when single requests failed (their samples say so). What is measured
 * adds up in log, which has a sample for each request of the trace. progress may be NULL.
 */
int replay_run(struct replay *e, struct replay_log *log, size_t from, size_t to, tutti_progress_fn progress);
/* Lanes first, then the store. Returns the store's result. */
int replay_close(struct replay *e);

/* request.c: one request. Faults go to the sample; a result is one that ends the run. */
int replay_request(struct worker *w, const struct trace_request *r, struct replay_sample *s);
/* An error of the request; the first of all is kept. The message is the library's last one, or given. */
void replay_note_error(struct replay *e, struct replay_sample *s, int result, const char *doing);
void replay_note_failure(struct replay *e, struct replay_sample *s, int result, const char *doing, const char *message);
void replay_busy(struct replay *e, struct replay_busy *b, int begins);

#endif
