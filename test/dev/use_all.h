/*
 * use_all.h - calls every inline function that device code may call, so that a compiler must accept and instantiate
 * each of them. Not meant to be run: the C++ and CUDA compile checks include it.
 */
#ifndef TUTTI_TEST_DEV_USE_ALL_H
#define TUTTI_TEST_DEV_USE_ALL_H

#include "dev/dptr.h"
#include "dev/io.h"
#include "dev/qp.h"
#include "geom/addr.h"
#include "geom/header.h"
#include "geom/objsum.h"
#include "port/port.h"
#include "wire/header.h"
#include "wire/nvme.h"

struct use_all {
	struct dev_list list;
	struct dev_dptr dptr;
	struct dev_qp qp;
	struct dev_block *block;
	struct nvme_sqe sqe;
	struct nvme_cqe cqe;
	struct geom geom;
	struct wire_header header;
	struct port_parker parker;
	uint32_t word;
	unsigned char data[4096];
};

PORT_FN uint64_t use_all_dev(struct use_all *u)
{
	uint64_t r = 0;

	dev_dptr_begin(&u->dptr, &u->list, u->word);
	r += (uint64_t)dev_dptr_add(&u->dptr, 4096, 4096);
	dev_dptr_finish(&u->dptr, &u->sqe);
	dev_qp_post(&u->qp, &u->sqe);
	dev_qp_ring(&u->qp);
	r += (uint64_t)dev_qp_poll(&u->qp, &u->cqe);
	dev_qp_release(&u->qp);
	return r;
}

PORT_FN uint64_t use_all_geom(struct use_all *u)
{
	struct geom_place p;
	uint32_t first;
	uint64_t r = (uint64_t)geom_derive(&u->geom) + geom_choose_g(4096, 1 << 17) + geom_objects(&u->geom);

	p = geom_place(&u->geom, u->word);
	r += geom_set_slots(&u->geom, p.set, &first) + geom_header_offset(&u->geom, &p);
	r += geom_object_offset(&u->geom, &p, 1, 0);
	geom_header_seal(&u->header);
	r += (uint64_t)geom_header_check(&u->header, first);
	r += (uint64_t)geom_header_match(&u->header, u->data, u->data + 32, 1, 0);
	r += *geom_header_sums(&u->header) + *geom_header_sums_const(&u->header);
	return r + objsum(u->data, 4096) + objsum_part_plain(u->data, 16, 16) + objsum_seed(1) + objsum_term(1, 2);
}

/* The I/O kernel's body; it uses all the rest of dev. */
PORT_FN uint64_t use_all_io(struct use_all *u)
{
	uint64_t r = (uint64_t)dev_io_run(u->block, 0, 1);

	dev_block_reset(u->block);
	dev_io_fail_rest(u->block, -EIO);
	return r;
}

PORT_FN uint64_t use_all(struct use_all *u)
{
	uint64_t r = port_now_ns() + port_load_relaxed32(&u->word) + port_add_acqrel32(&u->word, 1);

	port_pause();
	port_store_release32(&u->word, port_load_acquire32(&u->word));
	port_store_wake32(&u->word, 2, &u->parker);
	return r + use_all_dev(u) + use_all_geom(u) + use_all_io(u);
}

/* What host code alone may call; nvcc must compile it too. */
static inline uint64_t use_all_host(struct use_all *u)
{
	uint64_t r;

	port_park_announce(&u->parker);
	port_park_cancel(&u->parker);
	r = (uint64_t)port_park_wait(&u->parker, port_now_ns());
	port_unpark(&u->parker);
	r += objsum_part(u->data, 4096, 0) + objsum_copy_part(u->data, u->data + 2048, 2048, 0);
	return r + (uint64_t)objsum_isa_best() + (uint64_t)*objsum_isa_name(OBJSUM_SCALAR) +
	       objsum_isa_part(OBJSUM_SCALAR, u->data, u->data + 2048, 16, 0);
}

#endif
