/*
 * test_vectors.c - checksums that must never change: they lie on disks. docs/format.md shows the same ones.
 *
 * Byte i of the object is (i * 7 + 1) mod 256, unless the row says otherwise.
 */
#include "geom/objsum.h"
#include "test/check.h"

static unsigned char data[131072];

static void counted(void)
{
	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 7 + 1);
}

static void objects(void)
{
	static const struct {
		uint64_t bytes, sum;
	} rows[] = {
	    {0, 0x165667b19e3779f9ull},
	    {1, 0xc5ec1dc3771bffd0ull},
	    {8, 0x1ece8b5713fde955ull},
	    {16, 0xc5e23ffa698603c5ull},
	    {17, 0xcebd7901acbb96caull},
	    {192, 0x6d7a236f5e33c673ull},
	    {656, 0x98c2084dd309ffa9ull},
	    {4096, 0xcc15303f83cc421full},
	    {4097, 0x9cfd934f042da1e2ull},
	    {10496, 0x1b2058adf0aa04e5ull},
	    {81920, 0x6b14d648b0798b07ull},
	    {131072, 0xe0a93e88b4ed084aull},
	};

	counted();
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		CHECK(objsum(data, rows[i].bytes) == rows[i].sum);
		CHECK(objsum_seed(rows[i].bytes) + objsum_part_plain(data, rows[i].bytes, 0) == rows[i].sum);
	}
}

static void parts(void)
{
	counted();
	/* The second page of an object whose bytes are counted; and 16 bytes at 1 GiB. */
	CHECK(objsum_part(data + 4096, 4096, 4096) == 0xbd953f569767b275ull);
	CHECK(objsum_part(data, 16, 1u << 30) == 0x24444fc53685e825ull);
}

static void constant_objects(void)
{
	memset(data, 0, 4096);
	CHECK(objsum(data, 4096) == 0xda2ffcffb2c75081ull);
	memset(data, 0xff, 4096);
	CHECK(objsum(data, 4096) == 0x16c3becf9b0df28full);
}

int main(void)
{
	CHECK_RUN(objects);
	CHECK_RUN(parts);
	CHECK_RUN(constant_objects);
	return check_end();
}
