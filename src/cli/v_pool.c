/*
 * v_pool.c - verbs that look into a pool: info, ls, lookup, verify, clear.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/pool.h"
#include "cli/report.h"

/* ---- info ---- */

static json_t *ns_json(uint32_t i, const struct tutti_ns_info *n)
{
	json_t *o =
	    json_pack("{s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "namespace", (int)i, "model", n->model,
	                      "digest", cli_hex(n->digest, TUTTI_KEY_BYTES), "layers", (int)n->layers, "objects_per_layer",
	              (int)n->objects_per_layer, "block_tokens", (int)n->block_tokens, "kv_heads", (int)n->kv_heads,
	                      "head_size", (int)n->head_size, "tp_size", (int)n->tp_size, "set_slots", (int)n->set_slots);
	const struct {
		const char *name;
		uint64_t value;
	} more[] = {{"generation", n->generation}, {"object_bytes", n->object_bytes}, {"slot_bytes", n->slot_bytes},
	            {"segments", n->segments},     {"slots", n->slots},               {"committed", n->committed},
	            {"reserved", n->reserved},     {"leased", n->leased},             {"evicted", n->evicted}};

	for (size_t k = 0; k < sizeof(more) / sizeof(more[0]); k++)
		json_object_set_new(o, more[k].name, cli_json_u64(more[k].value));
	return o;
}

static json_t *pool_json(const struct tutti_pool_info *p)
{
	json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:b}", "uuid", cli_hex(p->uuid, 16), "version", (int)p->version,
	                      "ranks", (int)p->ranks, "devices", (int)p->n_devices, "clean", p->clean);
	const struct {
		const char *name;
		uint64_t value;
	} more[] = {{"bytes", p->bytes},
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
	            {"healed_copies", p->healed_copies}};

	for (size_t k = 0; k < sizeof(more) / sizeof(more[0]); k++)
		json_object_set_new(o, more[k].name, cli_json_u64(more[k].value));
	report_syncs_json(o, p);
	return o;
}

static void print_pool(const struct tutti_pool_info *p)
{
	printf("%-14s %s, format version %u\n", "pool", cli_hex(p->uuid, 16), p->version);
	printf("%-14s %s over %u device%s, %u rank%s\n", "size", cli_size(p->bytes), p->n_devices,
	       p->n_devices == 1 ? "" : "s", p->ranks, p->ranks == 1 ? "" : "s");
	printf("%-14s %" PRIu64 " of %s; free %" PRIu64 ", written before %" PRIu64 "\n", "segments", p->segments,
	       cli_size(p->segment_bytes), p->segments_free, p->segments_prewritten);
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

static void print_ns(uint32_t i, const struct tutti_ns_info *n)
{
	printf("\nnamespace %u   %s\n", i, n->model);
	printf("  %-12s %s, generation %" PRIu64 "\n", "digest", cli_hex(n->digest, TUTTI_KEY_BYTES), n->generation);
	printf("  %-12s %u layers of %u objects of %s; %u tokens, %u KV heads of %u, tensor parallel %u\n", "block",
	       n->layers, n->objects_per_layer, cli_size(n->object_bytes), n->block_tokens, n->kv_heads, n->head_size,
	       n->tp_size);
	printf("  %-12s %" PRIu64 " of %s in %" PRIu64 " segments, %u to a stripe set\n", "slots", n->slots,
	       cli_size(n->slot_bytes), n->segments, n->set_slots);
	printf("  %-12s %" PRIu64 " committed, %" PRIu64 " reserved, %" PRIu64 " leased, %" PRIu64
	       " evicted since open\n",
	       "blocks", n->committed, n->reserved, n->leased, n->evicted);
}

static int run_info(const struct cli_call *call)
{
	json_t *list = json_array(), *o;
	struct tutti_pool_info info;
	struct tutti_store *s;
	int status = CLI_DONE, result;

	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s) {
		json_decref(list);
		return status;
	}
	result = tutti_store_info(s, &info);
	if (result)
		status = cli_fail(call, result, "reading the pool");
	else if (!call->json)
		print_pool(&info);
	for (uint32_t i = 0; !result && i < info.n_namespaces; i++) {
		struct tutti_ns_info n;
		struct tutti_ns *ns;

		if (tutti_ns_at(s, i, &ns) || tutti_ns_get_info(ns, &n))
			continue;
		json_array_append_new(list, ns_json(i, &n));
		if (!call->json)
			print_ns(i, &n);
	}
	if (call->json && !result) {
		o = pool_json(&info);
		json_object_set(o, "namespaces", list);
		cli_print_json(o);
	}
	json_decref(list);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_info = {
    .name = "info",
    .operands = "POOL...",
    .summary = "Show what a pool is and what is in it.",
    .description =
        "Shows the pool's size, devices, segments and how it was closed, and for each namespace its geometry and "
                   "its blocks. A pool that was not closed cleanly is recovered first.",
    .example = "tutti info /var/cache/kv.pool",
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .run = run_info,
};

/* ---- ls ---- */

struct ls_args {
	uint64_t ns, limit;
};
static const struct ls_args ls_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option ls_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct ls_args, ns), "N", NULL, 0, UINT32_MAX,
     "The namespace's number, as 'tutti info' shows it. Default 0."},
    {"limit", 'l', CLI_COUNT, offsetof(struct ls_args, limit), "N", NULL, 0, 0,
     "Stop after N blocks. 0 (default): all."},
};

struct ls_line {
	struct tutti_key key, parent;
	uint32_t depth, slot;
};

struct ls_state {
	struct ls_line *lines;
	uint64_t n, room, most;
};

static int ls_block(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                    uint32_t slot)
{
	struct ls_state *st = arg;

	if (st->n == st->room) {
		uint64_t room = st->room ? st->room * 2 : 1024;
		struct ls_line *more = realloc(st->lines, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->lines = more;
		st->room = room;
	}
	st->lines[st->n++] = (struct ls_line){*key, *parent, depth, slot};
	return st->n == st->most;
}

static const char *ls_parent(const struct ls_line *l)
{
	static const struct tutti_key none;

	return memcmp(&l->parent, &none, sizeof(none)) ? cli_hex(l->parent.b, 32) : NULL;
}

static void ls_print(const struct cli_call *call, uint64_t number, const struct ls_state *st)
{
	json_t *list = json_array();

	for (uint64_t i = 0; i < st->n; i++) {
		const struct ls_line *l = &st->lines[i];
		const char *parent = ls_parent(l);

		if (call->json)
			json_array_append_new(list,
			                      json_pack("{s:s, s:s?, s:i, s:o}", "key", cli_hex(l->key.b, 32), "parent",
			                                parent, "depth", (int)l->depth, "slot", cli_json_u64(l->slot)));
		else
			printf("%s %s %6u %8u\n", cli_hex(l->key.b, 32), parent ? parent : "-", l->depth, l->slot);
	}
	if (call->json)
		cli_print_json(json_pack("{s:o, s:O}", "namespace", cli_json_u64(number), "blocks", list));
	json_decref(list);
}

static int run_ls(const struct cli_call *call)
{
	const struct ls_args *a = call->args;
	struct ls_state st = {.most = a->limit};
	struct tutti_store *s;
	struct tutti_ns *ns;
	int status = CLI_DONE, result = 0;

	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	ns = cli_pool_ns(call, s, a->ns, &status);
	if (ns)
		result = tutti_ns_each(ns, ls_block, &st);
	if (result < 0)
		status = cli_fail(call, result, "listing blocks");
	/* Closed before the first line is out: who reads it may open the pool. */
	status = cli_pool_close(call, s, status);
	if (status == CLI_DONE)
		ls_print(call, a->ns == CLI_NS_DEFAULT ? 0 : a->ns, &st);
	free(st.lines);
	return status;
}

const struct cli_verb verb_ls = {
    .name = "ls",
    .operands = "POOL...",
    .summary = "List the committed blocks of a namespace.",
    .description =
        "Prints a line for each committed block: key, parent key ('-' for the first block of a chain), depth in its "
                   "chain, slot. In no order.",
    .example = "tutti ls --limit 10 /var/cache/kv.pool",
    .options = ls_options,
    .n_options = sizeof(ls_options) / sizeof(ls_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct ls_args),
    .defaults = &ls_defaults,
    .run = run_ls,
};

/* ---- verify ---- */

struct verify_args {
	uint64_t ns;
	int repair;
};
static const struct verify_args verify_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option verify_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct verify_args, ns), "N", NULL, 0, UINT32_MAX,
     "Only this namespace. Default: all."},
    {"repair", 0, CLI_FLAG, offsetof(struct verify_args, repair), NULL, NULL, 0, 0,
     "Take damaged blocks, and those that build on them, out of the pool; without --namespace, also wipe records and "
     "headers that are lost."},
};

static int verify_ns(const struct cli_call *call, struct tutti_store *s, uint32_t i, int repair, json_t *list,
                     uint64_t *bad)
{
	uint64_t checked = 0, ns_bad = 0, gone = 0;
	struct tutti_ns_info info, after;
	struct tutti_ns *ns;
	int status = CLI_DONE, result;

	ns = cli_pool_ns(call, s, i, &status);
	if (!ns)
		return status;
	result = tutti_ns_get_info(ns, &info);
	if (!result)
		result = tutti_verify(ns, repair, cli_progress, NULL, &checked, &ns_bad);
	cli_progress_end();
	if (result && !ns_bad)
		return cli_fail(call, result, "verifying");
	*bad += ns_bad;
	/* What hangs below a damaged block can't be reached without it, and goes with it. */
	if (repair && !tutti_ns_get_info(ns, &after) && after.committed < info.committed)
		gone = info.committed - after.committed;
	json_array_append_new(list, json_pack("{s:i, s:s, s:o, s:o, s:o}", "namespace", (int)i, "model", info.model,
	                                      "checked", cli_json_u64(checked), "damaged", cli_json_u64(ns_bad),
	                                      "taken_out", cli_json_u64(gone)));
	if (!call->json && gone)
		printf("namespace %u, %s: %" PRIu64 " blocks checked, %" PRIu64 " damaged; %" PRIu64
		       " taken out, those below the damaged ones included\n",
		       i, info.model, checked, ns_bad, gone);
	else if (!call->json)
		printf("namespace %u, %s: %" PRIu64 " blocks checked, %" PRIu64 " damaged\n", i, info.model, checked,
		       ns_bad);
	return CLI_DONE;
}

/* What the open found damaged outside of blocks. */
static void print_found(const struct tutti_pool_info *i, int repaired)
{
	if (i->damaged_records || i->recovered_bad)
		printf("lost when the pool was opened: %" PRIu64 " records of namespaces or segments, %" PRIu64
		       " headers of blocks were damaged%s\n",
		       i->damaged_records, i->recovered_bad, repaired ? "; they are wiped" : "");
	if (i->healed_copies)
		printf("healed when the pool was opened: %u superblocks or records had a damaged copy; nothing was "
		       "lost, the other one was written over it\n",
		       i->healed_copies);
}

static int run_verify(const struct cli_call *call)
{
	const struct verify_args *a = call->args;
	struct tutti_pool_info info = {0};
	uint64_t bad = 0, wiped = 0, first, last;
	int status = CLI_DONE, failed, result;
	struct tutti_store *s;
	json_t *list;

	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	list = json_array();
	tutti_store_info(s, &info);
	first = a->ns == CLI_NS_DEFAULT ? 0 : a->ns;
	last = a->ns == CLI_NS_DEFAULT ? info.n_namespaces : a->ns + 1;
	for (uint64_t i = first; i < last && status == CLI_DONE; i++)
		status = verify_ns(call, s, (uint32_t)i, a->repair, list, &bad);
	if (status == CLI_DONE && a->repair && a->ns == CLI_NS_DEFAULT) {
		result = tutti_store_repair(s, &wiped);
		status = result ? cli_fail(call, result, "repairing") : CLI_DONE;
	}
	failed = status != CLI_DONE; /* and said so */
	if (status == CLI_DONE && (bad || info.damaged_records || info.recovered_bad || info.healed_copies))
		status = CLI_FINDING;
	if (!call->json)
		print_found(&info, a->repair && a->ns == CLI_NS_DEFAULT && !failed);
	if (!call->json && !info.n_namespaces && !failed)
		printf("the pool is empty\n");
	if (!call->json && bad && !a->repair)
		fprintf(stderr,
		        "tutti verify: %" PRIu64 " damaged blocks; they are never given back, only take space. "
		        "'tutti verify --repair' takes them out.\n",
		        bad);
	if (call->json && !failed)
		cli_print_json(json_pack("{s:O, s:o, s:o, s:o, s:o, s:o, s:b}", "namespaces", list, "damaged",
		                         cli_json_u64(bad), "lost_records", cli_json_u64(info.damaged_records),
		                         "lost_headers", cli_json_u64(info.recovered_bad), "healed_copies",
		                         cli_json_u64(info.healed_copies), "wiped", cli_json_u64(wiped), "repaired",
		                         a->repair));
	json_decref(list);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_verify = {
    .name = "verify",
    .operands = "POOL...",
    .summary = "Read and check every block of a pool.",
    .description =
        "Reads every committed block and compares headers and checksums, and says what of the pool's own records was "
        "damaged when it was opened. Exit status 1 if anything was, repaired or not; what is repaired is not found "
        "again. CPU threads do the reading, whatever executor the engine uses.",
    .example = "tutti verify --repair /var/cache/kv.pool",
    .options = verify_options,
    .n_options = sizeof(verify_options) / sizeof(verify_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct verify_args),
    .defaults = &verify_defaults,
    .run = run_verify,
};

/* ---- clear ---- */

struct clear_args {
	uint64_t ns;
	int all, remove;
};
static const struct clear_args clear_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option clear_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct clear_args, ns), "N", NULL, 0, UINT32_MAX, "Empty this namespace."},
    {"all", 'a', CLI_FLAG, offsetof(struct clear_args, all), NULL, NULL, 0, 0, "Empty every namespace."},
    {"remove", 0, CLI_FLAG, offsetof(struct clear_args, remove), NULL, NULL, 0, 0,
     "Also take it out of the pool's list, which has room for 64 namespaces."},
};

static int run_clear(const struct cli_call *call)
{
	const struct clear_args *a = call->args;
	struct tutti_pool_info info = {0};
	uint64_t first, last, dropped = 0;
	struct tutti_store *s;
	int status = CLI_DONE, result = 0;

	if ((a->ns == CLI_NS_DEFAULT) == !a->all)
		return cli_complain(call, CLI_USAGE, "say what to empty: --namespace N, or --all");
	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	tutti_store_info(s, &info);
	first = a->all ? 0 : a->ns;
	last = a->all ? info.n_namespaces : a->ns + 1;
	for (uint64_t i = first; i < last && status == CLI_DONE; i++) {
		/* Those behind a removed one move up. */
		struct tutti_ns *ns = cli_pool_ns(call, s, a->remove ? first : i, &status);
		struct tutti_ns_info n;

		if (!ns)
			break;
		result = tutti_ns_get_info(ns, &n);
		if (!result)
			result = a->remove ? tutti_ns_remove(ns) : tutti_ns_clear(ns);
		if (result)
			status = cli_fail(call, result, "clearing");
		else
			dropped += n.committed;
	}
	if (status == CLI_DONE && call->json)
		cli_print_json(
		    json_pack("{s:o, s:o}", "namespaces", cli_json_u64(last - first), "blocks", cli_json_u64(dropped)));
	else if (status == CLI_DONE)
		printf("%" PRIu64 " namespace%s %s, %" PRIu64 " blocks\n", last - first, last - first == 1 ? "" : "s",
		       a->remove ? "removed" : "emptied", dropped);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_clear = {
    .name = "clear",
    .operands = "POOL...",
    .summary = "Empty a namespace, or all of them.",
    .description =
        "Empties a namespace at once, durably; its space comes back as it is needed. With --remove it also leaves the "
        "list of namespaces. The pool's size and its other namespaces stay as they are.",
    .example = "tutti clear --namespace 0 /var/cache/kv.pool",
    .options = clear_options,
    .n_options = sizeof(clear_options) / sizeof(clear_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct clear_args),
    .defaults = &clear_defaults,
    .run = run_clear,
};
