/*
 * v_info.c - tutti info: what a pool is and what is in it. One that another process has is looked at from outside.
 */
#include <errno.h>
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/pool.h"
#include "cli/report.h"

/* ---- JSON: what is not known is null ---- */

struct number {
	const char *name;
	uint64_t value;
};

static void put_numbers(json_t *o, const struct number *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		json_object_set_new(o, list[i].name,
		                    list[i].value == TUTTI_UNKNOWN ? json_null() : cli_json_u64(list[i].value));
}

static json_t *ns_json(uint32_t i, const struct tutti_ns_info *n)
{
	const struct number numbers[] = {{"namespace", i},
	                                 {"layers", n->layers},
	                                 {"objects_per_layer", n->objects_per_layer},
	                                 {"block_tokens", n->block_tokens},
	                                 {"kv_heads", n->kv_heads},
	                                 {"head_size", n->head_size},
	                                 {"tp_size", n->tp_size},
	                                 {"set_slots", n->set_slots},
	                                 {"generation", n->generation},
	                                 {"object_bytes", n->object_bytes},
	                                 {"slot_bytes", n->slot_bytes},
	                                 {"segments", n->segments},
	                                 {"slots", n->slots},
	                                 {"committed", n->committed},
	                                 {"reserved", n->reserved},
	                                 {"leased", n->leased},
	                                 {"evicted", n->evicted}};
	json_t *o = json_pack("{s:s, s:s}", "model", n->model, "digest", cli_hex(n->digest, TUTTI_KEY_BYTES));

	put_numbers(o, numbers, sizeof(numbers) / sizeof(numbers[0]));
	return o;
}

/* look: NULL of a pool that this program opened. */
static json_t *pool_json(const struct tutti_pool_info *p, const struct tutti_pool_look *look)
{
	const struct number numbers[] = {
	    {"version", p->version},
	    {"ranks", p->ranks},
	    {"devices", p->n_devices},
	    {"bytes", p->bytes},
	    {"segment_bytes", p->segment_bytes},
	    {"segments", p->segments},
	    {"segments_free", p->segments_free},
	    {"segments_prewritten", p->segments_prewritten},
	    {"epoch", p->epoch},
	    {"index_bytes", p->index_bytes},
	    {"recovered_slots", p->recovered_slots},
	    {"recovered_orphans", p->recovered_orphans},
	    {"recovered_bad", p->recovered_bad},
	    {"damaged_records", p->damaged_records},
	    {"healed_copies", p->healed_copies == UINT32_MAX ? TUTTI_UNKNOWN : p->healed_copies},
	    {"failed_syncs", p->failed_syncs}};
	json_t *o = json_pack("{s:s}", "uuid", cli_hex(p->uuid, 16));

	put_numbers(o, numbers, sizeof(numbers) / sizeof(numbers[0]));
	json_object_set_new(o, "clean", p->clean < 0 ? json_null() : json_boolean(p->clean));
	json_object_set_new(o, "sync_failing", p->sync_failing < 0 ? json_null() : json_boolean(p->sync_failing));
	if (!look) {
		json_object_set_new(o, "held_by", json_null());
		return o;
	}
	json_object_set_new(o, "held_by",
	                    json_pack("{s:o, s:s?, s:o}", "pid", look->pid ? json_integer(look->pid) : json_null(),
	                              "host", look->host[0] ? look->host : NULL, "lane_pid",
	                              look->lane_pid ? json_integer(look->lane_pid) : json_null()));
	return o;
}

/* ---- text ---- */

static void print_size(const struct tutti_pool_info *p)
{
	printf("%-14s %s, format version %u\n", "pool", cli_hex(p->uuid, 16), p->version);
	printf("%-14s %s over %u device%s, %u rank%s\n", "size", cli_size(p->bytes), p->n_devices,
	       p->n_devices == 1 ? "" : "s", p->ranks, p->ranks == 1 ? "" : "s");
	printf("%-14s %" PRIu64 " of %s; free %" PRIu64 ", written before %" PRIu64 "\n", "segments", p->segments,
	       cli_size(p->segment_bytes), p->segments_free, p->segments_prewritten);
}

static void print_opened(const struct tutti_pool_info *p)
{
	print_size(p);
	printf("%-14s %s; epoch %" PRIu64 "\n", "last closed",
	       p->epoch <= 1 ? "never: it is new"
	       : p->clean    ? "cleanly"
	                     : "not cleanly: recovered from the slots' headers",
	       p->epoch);
	if (!p->clean && p->epoch > 1)
		printf("%-14s %" PRIu64 " slots; %" PRIu64 " orphans and %" PRIu64 " damaged headers left out\n",
		       "recovered", p->recovered_slots, p->recovered_orphans, p->recovered_bad);
	report_syncs(stdout, 14, p);
	if (p->damaged_records)
		printf("%-14s %" PRIu64 " records of namespaces or segments, with their blocks: 'tutti verify "
		       "--repair' clears them away\n",
		       "lost", p->damaged_records);
	if (p->healed_copies)
		printf("%-14s %u superblocks or records had a damaged copy; the other one counts, and was written over "
		       "it\n",
		       "healed", p->healed_copies);
	printf("%-14s %s of memory\n", "index", cli_size(p->index_bytes));
}

static void print_held(const struct tutti_pool_look *l)
{
	print_size(l->pool);
	if (l->pid)
		printf("%-14s process %d%s%s; epoch %" PRIu64 "\n", "held by", (int)l->pid,
		       l->host[0] ? " on host " : ", which is just opening it", l->host, l->pool->epoch);
	else if (l->held)
		printf("%-14s another process, which is just opening it, or formatting it\n", "held by");
	if (l->lane_pid)
		printf("%-14s process %d has a lane on it%s\n", "lanes", (int)l->lane_pid,
		       l->held ? "" : ", of a store that is gone");
	printf("%-14s from outside, as its records on disk say now; nothing was opened, written or mended.\n"
	       "%-14s How many blocks are stored or in use only the store that has it knows\n",
	       "looked at", "");
}

static void print_ns(uint32_t i, const struct tutti_ns_info *n)
{
	printf("\nnamespace %u   %s\n", i, n->model);
	printf("  %-12s %s, generation %" PRIu64 "\n", "digest", cli_hex(n->digest, TUTTI_KEY_BYTES), n->generation);
	printf("  %-12s %u layers of %u objects of %s; %u tokens, %u KV heads of %u, tensor parallel %u\n", "block",
	       n->layers, n->objects_per_layer, cli_size(n->object_bytes), n->block_tokens, n->kv_heads, n->head_size,
	       n->tp_size);
	printf("  %-12s %" PRIu64 " of %s in %" PRIu64 " segments, %u to a stripe set\n", "slots", n->slots,
	       cli_size(n->slot_bytes), n->segments, n->set_slots);
	if (n->committed == TUTTI_UNKNOWN)
		printf("  %-12s not known from outside\n", "blocks");
	else
		printf("  %-12s %" PRIu64 " committed, %" PRIu64 " reserved, %" PRIu64 " leased, %" PRIu64
		       " evicted since open\n",
		       "blocks", n->committed, n->reserved, n->leased, n->evicted);
}

/* ---- the verb ---- */

/* Prints a namespace, or puts it into the list. */
static void show_ns(const struct cli_call *call, json_t *list, uint32_t i, const struct tutti_ns_info *n)
{
	if (call->json)
		json_array_append_new(list, ns_json(i, n));
	else
		print_ns(i, n);
}

static int show_held(void *arg, const struct tutti_pool_look *look)
{
	const struct cli_call *call = arg;
	json_t *list = json_array(), *o;

	if (!call->json)
		print_held(look);
	for (uint32_t i = 0; i < look->pool->n_namespaces; i++)
		show_ns(call, list, i, &look->ns[i]);
	if (call->json) {
		o = pool_json(look->pool, look);
		json_object_set(o, "namespaces", list);
		cli_print_json(o);
	}
	json_decref(list);
	return 0;
}

static int show_opened(const struct cli_call *call, struct tutti_store *s)
{
	json_t *list = json_array(), *o;
	struct tutti_pool_info info;
	int result = tutti_store_info(s, &info);

	if (result) {
		json_decref(list);
		return cli_fail(call, result, "reading the pool");
	}
	if (!call->json)
		print_opened(&info);
	for (uint32_t i = 0; i < info.n_namespaces; i++) {
		struct tutti_ns_info n;
		struct tutti_ns *ns;

		if (!tutti_ns_at(s, i, &ns) && !tutti_ns_get_info(ns, &n))
			show_ns(call, list, i, &n);
	}
	if (call->json) {
		o = pool_json(&info, NULL);
		json_object_set(o, "namespaces", list);
		cli_print_json(o);
	}
	json_decref(list);
	return cli_pool_damage(&info) ? CLI_FINDING : CLI_DONE;
}

static int run_info(const struct cli_call *call)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct tutti_store *s;
	int status = CLI_DONE, result;

	o.paths = call->operands;
	o.n_paths = call->n_operands;
	o.progress = cli_progress;
	result = tutti_store_open(&o, &s);
	cli_progress_end();
	if (!result) {
		status = show_opened(call, s);
		return cli_pool_close(call, s, status);
	}
	if (result == -EBUSY)
		result = tutti_pool_look(&o, show_held, (void *)(uintptr_t)call);
	if (!result)
		return CLI_DONE;
	return result == -EBUSY ? cli_fail(call, result, call->operands[0])
	                        : cli_pool_refused(call, call->operands, result);
}

const struct cli_verb verb_info = {
    .name = "info",
    .operands = "POOL...",
    .summary = "Show what a pool is and what is in it.",
    .description =
        "Shows the pool's size, devices, segments and how it was closed, and for each namespace its geometry and "
        "its blocks. A pool that was not closed cleanly is recovered first. Exit status 1 if that open found anything "
        "damaged, mended by it or not, as 'tutti verify' does.\n\n"
        "A pool that another process has open is looked at from outside: nothing is written or mended, that process is "
        "named, and what it alone knows (how many blocks there are) is left out, in JSON null. Exit status "
        "0." CLI_POOL_HELP,
    .example = "tutti info /var/cache/kv.pool\n"
               "tutti info --format json /var/cache/kv.pool | jq .held_by.pid",
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .run = run_info,
};
