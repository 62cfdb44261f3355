/*
 * test_faults.c - a disk that fails, lies, forgets: whatever it does, a block comes back exact or is reported, the
 * others are not harmed, and the books agree with the disk afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"
#include "geom/header.h"

#define N 24

struct lab {
	struct rig r;
	struct fault_io *f;
	struct tutti_key keys[N];
	uint64_t blocks[N];
	uint32_t slot[N];
};

static struct lab lab;

static int note_slot(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                     uint32_t slot)
{
	(void)arg;
	(void)parent;
	if (depth < N && !memcmp(key, &lab.keys[depth], sizeof(*key)))
		lab.slot[depth] = slot;
	return 0;
}

static const struct rig_shape plain = {
    .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};
static const struct rig_shape bounced = {
    .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 10000, .order = "LoB"};
static const struct rig_shape ranks2 = {
    .ranks = 2, .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};
static const struct rig_shape large = {.layers = 2,
                                       .blocks = 32,
                                       .segment_bytes = (2u << 20) + 4096,
                                       .order = "LB",
                                       .pool_bytes = 256u << 20,
                                       .segment_pool_bytes = 64u << 20};

/* A stack over a disk that obeys rules, with nothing stored yet. */
static void begin(const struct rig_shape *shape)
{
	lab.f = fault_io_new(0);
	CHECK(lab.f != NULL);
	pool_use_io(&fault_io_ops, lab.f);
	rig_up(&lab.r, shape);
	rig_keys(&lab.r, 1, N, lab.keys);
	for (uint32_t i = 0; i < N; i++)
		lab.blocks[i] = (i * 7 + 3) % shape->blocks; /* 7 and both sizes have no common factor */
}

static void begin_stored(const struct rig_shape *shape)
{
	size_t stored;

	begin(shape);
	CHECK_EQ(rig_store(&lab.r, lab.keys, N, lab.blocks, &stored), 0);
	CHECK_EQ(stored, N);
	CHECK_EQ(tutti_ns_each(lab.r.ns, note_slot, NULL), 0);
}

static void check_books(void)
{
	struct tutti_ns_info i;

	CHECK_EQ(store_check(lab.r.store->st), 0);
	CHECK_EQ(tutti_ns_get_info(lab.r.ns, &i), 0);
	CHECK_EQ(i.leased, 0);
	CHECK_EQ(i.reserved, 0);
}

static void end(void)
{
	check_books();
	fault_io_clear(lab.f);
	rig_down(&lab.r);
	pool_use_io(NULL, NULL);
	fault_io_free(lab.f);
}

static uint64_t object_offset(uint32_t block, uint32_t layer, uint32_t object, uint32_t rank)
{
	struct geom g;
	struct geom_place p;

	store_ns_geom(lab.r.ns->ns, rank, &g);
	p = geom_place(&g, lab.slot[block]);
	return geom_object_offset(&g, &p, layer, object);
}

static uint64_t header_offset(uint32_t block, uint32_t rank)
{
	struct geom g;
	struct geom_place p;

	store_ns_geom(lab.r.ns->ns, rank, &g);
	p = geom_place(&g, lab.slot[block]);
	return geom_header_offset(&g, &p);
}

static void fault(enum fault_kind kind, uint32_t ops, uint64_t from, uint64_t to, uint64_t count, uint64_t value)
{
	struct fault_rule rule = {
	    .kind = kind, .ops = ops, .count = count, .value = value, .offset_from = from, .offset_to = to};

	CHECK_EQ(fault_io_rule(lab.f, &rule), 0);
}

/*
 * Retrieves the chain: exactly block `bad` fails (N: none), all others are exact; then it and what hangs below it are
 * gone, what is above it is still there.
 */
static void only_this_fails(uint32_t bad)
{
	size_t hit, failed;

	for (uint32_t rank = 0; rank < lab.r.shape.ranks; rank++)
		rig_wipe(&lab.r, rank);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(failed, bad < N);
	for (uint32_t rank = 0; rank < lab.r.shape.ranks; rank++)
		for (uint32_t i = 0; i < N; i++)
			if (i != bad)
				CHECK_EQ(rig_wrong(&lab.r, rank, lab.blocks[i], &lab.keys[i]), 0);
	fault_io_clear(lab.f);
	check_books();
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 1, &hit, &failed), 0);
	CHECK_EQ(hit, bad);
	CHECK_EQ(failed, 0);
	for (uint32_t i = 0; i < hit; i++)
		CHECK_EQ(rig_wrong(&lab.r, 0, lab.blocks[i], &lab.keys[i]), 0);
}

/* What is lost can be stored again, into slots whose headers were valid. */
static void store_again(void)
{
	size_t stored, hit, failed;

	CHECK_EQ(rig_store(&lab.r, lab.keys, N, lab.blocks, &stored), 0);
	for (uint32_t rank = 0; rank < lab.r.shape.ranks; rank++)
		rig_wipe(&lab.r, rank);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(failed, 0);
	for (uint32_t rank = 0; rank < lab.r.shape.ranks; rank++)
		for (uint32_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(&lab.r, rank, lab.blocks[i], &lab.keys[i]), 0);
}

/* ---- media errors ---- */

/* Every read that begins in this object's first page fails: of a command that holds several, and of the object alone.
 */
static void bad_object(const struct rig_shape *shape, uint32_t block, uint32_t layer)
{
	struct tutti_lane_stats st;
	uint64_t at;

	begin_stored(shape);
	at = object_offset(block, layer, 0, 0);
	fault(FAULT_ERROR, FAULT_READ, at, at + 4096, UINT64_MAX, EIO);
	only_this_fails(block);
	CHECK_EQ(tutti_lane_stats(lab.r.lane[0], &st), 0);
	CHECK(st.failed_objects >= 1);
	CHECK_EQ(st.failed_blocks, 1);
	store_again();
	end();
}

static void media_error_in_a_merged_command(void)
{
	struct tutti_lane_stats st;
	struct geom g;
	uint64_t at;

	begin_stored(&plain);
	store_ns_geom(lab.r.ns->ns, 0, &g);
	CHECK(g.g >= 8);
	CHECK_EQ(geom_place(&g, lab.slot[5]).set, geom_place(&g, lab.slot[0]).set); /* 0 to 7 are neighbours */
	at = object_offset(5, 1, 0, 0);
	fault(FAULT_ERROR, FAULT_READ, object_offset(0, 1, 0, 0), object_offset(0, 1, 0, 0) + 1, 1,
	      EIO);                                                  /* the whole */
	fault(FAULT_ERROR, FAULT_READ, at, at + 1, UINT64_MAX, EIO); /* and 5 alone */
	only_this_fails(5);
	CHECK_EQ(tutti_lane_stats(lab.r.lane[0], &st), 0);
	CHECK_EQ(st.retries, 1);
	CHECK_EQ(st.failed_objects, 1);
	store_again();
	end();
}

static void media_error_that_heals(void)
{
	begin_stored(&plain);
	fault(FAULT_ERROR, FAULT_READ, object_offset(0, 1, 0, 0), object_offset(0, 1, 0, 0) + 1, 1, EIO);
	only_this_fails(N);
	end();
}

static void media_error_bounced(void) { bad_object(&bounced, 0, 1); }
static void media_error_in_a_large_object(void) { bad_object(&large, 3, 1); }

static void media_error_in_a_header(void)
{
	begin_stored(&plain);
	fault(FAULT_ERROR, FAULT_READ, header_offset(0, 0), header_offset(0, 0) + 1, 1, EIO);
	fault(FAULT_ERROR, FAULT_READ, header_offset(3, 0), header_offset(3, 0) + 1, UINT64_MAX, EIO);
	only_this_fails(3);
	store_again();
	end();
}

static void media_error_of_one_rank(void)
{
	begin_stored(&ranks2);
	fault(FAULT_ERROR, FAULT_READ, object_offset(0, 2, 0, 1), object_offset(0, 2, 0, 1) + 1, UINT64_MAX, EIO);
	only_this_fails(0);
	store_again();
	end();
}

/* ---- bytes that changed on the medium ---- */

static void patch(uint64_t offset, const void *data, size_t bytes)
{
	int fd = open(lab.r.paths[0], O_RDWR);

	CHECK(fd >= 0 && pwrite(fd, data, bytes, (off_t)offset) == (ssize_t)bytes && fsync(fd) == 0 && close(fd) == 0);
}

static void fetch(uint64_t offset, void *data, size_t bytes)
{
	int fd = open(lab.r.paths[0], O_RDONLY);

	CHECK(fd >= 0 && pread(fd, data, bytes, (off_t)offset) == (ssize_t)bytes && close(fd) == 0);
}

static void flip(uint64_t offset, uint32_t bit)
{
	uint8_t b;

	fetch(offset, &b, 1);
	b ^= (uint8_t)(1u << bit);
	patch(offset, &b, 1);
}

static void flipped_bits_in_payloads(void)
{
	static const struct rig_shape *const shapes[] = {&plain, &bounced, &large, &ranks2};
	uint64_t seed = 4;

	for (int s = 0; s < 4; s++) {
		for (int i = 0; i < 3; i++) {
			uint32_t block = (uint32_t)(check_random(&seed) % N), layer, object;
			uint64_t byte;

			begin_stored(shapes[s]);
			layer = (uint32_t)(check_random(&seed) % lab.r.shape.layers);
			object = (uint32_t)(check_random(&seed) % lab.r.shape.outer_count);
			byte = check_random(&seed) % lab.r.shape.segment_bytes;
			flip(object_offset(block, layer, object, lab.r.shape.ranks - 1) + byte, (uint32_t)(byte % 8));
			only_this_fails(block);
			store_again();
			end();
		}
	}
}

static void flip_on_the_way(void)
{
	begin_stored(&plain);
	/* One command holds blocks 0 to 7 of the object: bit 8 * 16384 * 2 + 5 of it is block 2's. */
	fault(FAULT_FLIP, FAULT_READ, object_offset(0, 0, 0, 0), object_offset(0, 0, 0, 0) + 1, 1, 8 * 16384 * 2 + 5);
	only_this_fails(2);
	end();
}

static void zeroed_page(void)
{
	static const uint8_t zeros[4096];

	begin_stored(&plain);
	patch(object_offset(7, 2, 1, 0) + 8192, zeros, sizeof(zeros));
	only_this_fails(7);
	CHECK(strstr(tutti_error_message(), "a checksum differs"));
	store_again();
	end();
}

static void swapped_objects(void)
{
	static uint8_t a[16384], b[16384];

	begin_stored(&plain);
	/* K and V of one block exchanged: each is sound in itself, and both are in the wrong place. */
	fetch(object_offset(4, 1, 0, 0), a, sizeof(a));
	fetch(object_offset(4, 1, 1, 0), b, sizeof(b));
	patch(object_offset(4, 1, 0, 0), b, sizeof(b));
	patch(object_offset(4, 1, 1, 0), a, sizeof(a));
	only_this_fails(4);
	end();
}

static void flipped_bits_in_headers(void)
{
	uint64_t seed = 9;

	for (int i = 0; i < 12; i++) {
		uint32_t block = (uint32_t)(check_random(&seed) % N);

		begin_stored(&plain);
		/* Anywhere in the fixed part or the sums (6 objects). */
		flip(header_offset(block, 0) + check_random(&seed) % (sizeof(struct wire_header) + 48),
		     (uint32_t)(seed % 8));
		only_this_fails(block);
		end();
	}
}

static void header_of_another_block(void)
{
	static uint8_t h[4096];

	begin_stored(&plain);
	fetch(header_offset(9, 0), h, sizeof(h)); /* sound, but says that this slot holds block 9 */
	patch(header_offset(2, 0), h, sizeof(h));
	only_this_fails(2);
	CHECK(strstr(tutti_error_message(), "its slot holds another block"));
	end();
}

static void whole_slot_of_another_block(void)
{
	static uint8_t h[16384];

	begin_stored(&plain);
	for (uint32_t layer = 0; layer < 3; layer++) {
		for (uint32_t o = 0; o < 2; o++) {
			fetch(object_offset(9, layer, o, 0), h, 16384);
			patch(object_offset(2, layer, o, 0), h, 16384);
		}
	}
	fetch(header_offset(9, 0), h, 4096);
	patch(header_offset(2, 0), h, 4096);
	only_this_fails(2); /* every checksum agrees; the key does not */
	end();
}

/* ---- writes that fail ---- */

/* A store of the chain whose I/O of `block` fails: what is above it is published, it and what hangs below it is not. */
static void write_fails(uint32_t block)
{
	size_t stored, hit, failed;

	CHECK(rig_store(&lab.r, lab.keys, N, lab.blocks, &stored) != 0);
	CHECK(fault_io_count(lab.f, FAULT_WRITE) > 0);
	fault_io_clear(lab.f);
	check_books();
	rig_wipe(&lab.r, 0);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK_EQ(hit, block);
	CHECK_EQ(failed, 0);
	for (uint32_t i = 0; i < hit; i++)
		CHECK_EQ(rig_wrong(&lab.r, 0, lab.blocks[i], &lab.keys[i]), 0);
	store_again();
}

/* Slots are given out in the same order on every fresh pool: learn them from one that works. */
static void learn_slots(void)
{
	begin_stored(&plain);
	end();
}

static void data_write_fails(void)
{
	learn_slots();
	begin(&plain);
	fault(FAULT_ERROR, FAULT_WRITE, object_offset(0, 1, 0, 0), object_offset(0, 1, 0, 0) + 1, 1, ENOSPC);
	fault(FAULT_ERROR, FAULT_WRITE, object_offset(6, 1, 0, 0), object_offset(6, 1, 0, 0) + 1, UINT64_MAX, ENOSPC);
	write_fails(6);
	end();
}

static void header_write_fails(void)
{
	learn_slots();
	begin(&plain);
	fault(FAULT_ERROR, FAULT_WRITE, header_offset(0, 0), header_offset(0, 0) + 1, 1, EIO);
	fault(FAULT_ERROR, FAULT_WRITE, header_offset(4, 0), header_offset(4, 0) + 1, UINT64_MAX, EIO);
	write_fails(4);
	end();
}

static void wipe_of_an_old_header_fails(void)
{
	size_t stored, hit, failed;

	begin_stored(&plain);
	CHECK_EQ(tutti_ns_clear(lab.r.ns), 0);
	/* The slots' headers are valid on disk, of an older generation; block 5's can't be wiped. */
	fault(FAULT_ERROR, FAULT_WRITE, header_offset(0, 0), header_offset(0, 0) + 1, 1, EIO);
	fault(FAULT_ERROR, FAULT_WRITE, header_offset(5, 0), header_offset(5, 0) + 1, UINT64_MAX, EIO);
	CHECK(rig_store(&lab.r, lab.keys, N, lab.blocks, &stored) != 0);
	fault_io_clear(lab.f);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK(hit <= 5);
	CHECK_EQ(failed, 0);
	check_books();
	store_again();
	end();
}

static void everything_fails(void)
{
	size_t stored, hit, failed;

	begin(&plain);
	fault(FAULT_ERROR, FAULT_WRITE, 1 << 20, UINT64_MAX, UINT64_MAX, EIO);
	CHECK(rig_store(&lab.r, lab.keys, N, lab.blocks, &stored) != 0);
	fault_io_clear(lab.f);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK_EQ(hit, 0);
	check_books();
	store_again();
	end();
}

/* ---- a disk that is only slow or odd ---- */

static void short_interrupted_late_and_out_of_order(void)
{
	begin_stored(&plain);
	fault(FAULT_SHORT, FAULT_READ, 0, 0, 20, 4096);
	fault(FAULT_ERROR, FAULT_READ, 0, 0, 5, EINTR);
	fault(FAULT_REORDER, FAULT_READ, 0, 0, 10, 3);
	fault(FAULT_DELAY, FAULT_READ, 0, 0, 5, 2000000);
	only_this_fails(N);
	CHECK_EQ(tutti_ns_clear(lab.r.ns), 0);
	fault(FAULT_SHORT, FAULT_WRITE, 0, 0, 20, 8192);
	fault(FAULT_REORDER, FAULT_WRITE, 0, 0, 10, 4);
	fault(FAULT_ERROR, FAULT_WRITE, 0, 0, 3, EAGAIN);
	store_again();
	end();
}

/* ---- verify ---- */

static void verify_finds_and_repairs(void)
{
	uint64_t checked, bad;
	size_t hit, failed;

	begin_stored(&ranks2);
	CHECK_EQ(tutti_verify(lab.r.ns, 0, NULL, NULL, &checked, &bad), 0);
	CHECK_EQ(checked, N);
	CHECK_EQ(bad, 0);
	flip(object_offset(N - 1, 0, 0, 1) + 77, 3);
	flip(object_offset(N - 2, 2, 1, 0), 0);
	CHECK_EQ(tutti_verify(lab.r.ns, 0, NULL, NULL, &checked, &bad), 0);
	CHECK_EQ(bad, 2);
	CHECK_EQ(tutti_verify(lab.r.ns, 1, NULL, NULL, &checked, &bad), 0);
	CHECK(bad >= 1); /* dropping the parent takes the child along */
	CHECK_EQ(tutti_verify(lab.r.ns, 0, NULL, NULL, &checked, &bad), 0);
	CHECK_EQ(checked, N - 2);
	CHECK_EQ(bad, 0);
	CHECK_EQ(rig_retrieve(&lab.r, lab.keys, N, lab.blocks, 0, &hit, &failed), 0);
	CHECK_EQ(hit, N - 2);
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(media_error_in_a_merged_command);
	CHECK_RUN(media_error_that_heals);
	CHECK_RUN(media_error_bounced);
	CHECK_RUN(media_error_in_a_large_object);
	CHECK_RUN(media_error_in_a_header);
	CHECK_RUN(media_error_of_one_rank);
	CHECK_RUN(flipped_bits_in_payloads);
	CHECK_RUN(flip_on_the_way);
	CHECK_RUN(zeroed_page);
	CHECK_RUN(swapped_objects);
	CHECK_RUN(flipped_bits_in_headers);
	CHECK_RUN(header_of_another_block);
	CHECK_RUN(whole_slot_of_another_block);
	CHECK_RUN(data_write_fails);
	CHECK_RUN(header_write_fails);
	CHECK_RUN(wipe_of_an_old_header_fails);
	CHECK_RUN(everything_fails);
	CHECK_RUN(short_interrupted_late_and_out_of_order);
	CHECK_RUN(verify_finds_and_repairs);
	scratch_end();
	return check_end();
}
