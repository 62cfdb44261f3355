# Tutti: one Makefile. Everything it makes lies in $(BUILD). `make help` lists the targets.
#
# The sources name themselves: src/ROOM/*.c is the library, src/cli/*.c the command, test/ROOM/test_*.c a program
# each, test/ROOM/*.c without test_ is shared by the tests, test/fuzz/fuzz_*.c a fuzzer each, bench/*.c the benchmark
# and bench/micro/micro_*.c a program each. A build with other flags goes to a directory of its own, by calling this
# file again with another BUILD: that is how the sanitizers and the fuzzers live beside the plain build.

BUILD ?= build
CC = gcc
OBJCOPY = objcopy
WERROR = 1
CFLAGS = -O2 -g
CFLAGS_EXTRA =
LDFLAGS_EXTRA =
PREFIX = /usr/local
LIBDIR = $(PREFIX)/lib
DESTDIR =
FUZZ_SECONDS = 60
SOAK_SECONDS = 600
# Handed to bench/run.
BENCH_ARGS =

ROOMS = base port geom dev map store ring exec ctrl sched core
# Rooms whose tests run under ThreadSanitizer: code that several threads share.
TSAN_ROOMS = base port dev ctrl ring exec core

# One source of the version: include/tutti/tutti.h.
version_of = $(shell sed -n 's/^.define TUTTI_VERSION_$(1) //p' include/tutti/tutti.h)
MAJOR := $(call version_of,MAJOR)
VERSION := $(MAJOR).$(call version_of,MINOR).$(call version_of,PATCH)

WARNINGS = -Wall -Wextra -Wshadow -Wconversion $(if $(filter 1,$(WERROR)),-Werror)
CPPFLAGS = -D_GNU_SOURCE -Iinclude -Isrc
TEST_CPPFLAGS = -Itest -I.
ALL_CFLAGS = -std=c11 $(CPPFLAGS) $(CFLAGS) -fPIC -pthread $(WARNINGS) $(CFLAGS_EXTRA)
ALL_LDFLAGS = -pthread -Wl,--as-needed $(CFLAGS_EXTRA) $(LDFLAGS_EXTRA)
LIBS_STATIC =
lib_of = $(foreach l,$(1),$(if $(LIBS_STATIC),-l:lib$(l).a,-l$(l)))
LIBS = $(call lib_of,uring xxhash crypto) -lpthread -lm $(CUDA_LIBS)
CLI_LIBS = $(call lib_of,jansson lzma) $(LIBS)

# CUDA=1 (make cuda): the GPU executor is part of the library; nvcc compiles its kernels alone.
CUDA =
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(or $(shell command -v nvcc 2> /dev/null),/usr/local/cuda/bin/nvcc))
NVCC = $(CUDA_HOME)/bin/nvcc
NVCC_ARCH = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
	-gencode arch=compute_90,code=compute_90
NVCC_FLAGS = -std=c++17 -O2 -g -lineinfo $(NVCC_ARCH) $(CPPFLAGS) -DTUTTI_CUDA -Werror all-warnings \
	-Xcompiler -fPIC,-Wall,-Wextra
ifneq ($(CUDA),)
CPPFLAGS += -DTUTTI_CUDA -isystem $(CUDA_HOME)/include
CUDA_OBJ = $(addprefix $(BUILD)/obj/src/exec/,io_kernel.cu.o io_small.cu.o standin_kernel.cu.o)
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
endif

CUDA_SRC := $(wildcard src/exec/gpu*.c) src/map/export.c
LIB_SRC := $(filter-out $(if $(CUDA),,$(CUDA_SRC)),$(foreach r,$(ROOMS),$(sort $(wildcard src/$(r)/*.c))))
CLI_SRC := $(sort $(wildcard src/cli/*.c))
TEST_SRC := $(sort $(wildcard test/*/test_*.c))
SUPPORT_SRC := $(filter-out $(TEST_SRC) test/fuzz/% test/soak/%,$(sort $(wildcard test/*/*.c)))
FUZZ_SRC := $(sort $(wildcard test/fuzz/fuzz_*.c))
SOAK_SRC := $(sort $(wildcard test/soak/soak_*.c))
BENCH_SRC := $(sort $(wildcard bench/*.c))
MICRO_SRC := $(sort $(wildcard bench/micro/micro_*.c))
GPU_BENCH_SRC := $(sort $(wildcard bench/gpu/*.c))
EXAMPLE_SRC := $(sort $(wildcard examples/*.c))
SCRIPT_TESTS := $(sort $(wildcard test/*/test_*.sh test/*/test_*.py))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
prog = $(patsubst %.c,$(BUILD)/%,$(1))

STATIC = $(BUILD)/libtutti.a
# All functions of all rooms, for tests; libtutti.a shows the public ones only, like the shared library.
PARTS = $(BUILD)/librooms.a
SHARED = $(BUILD)/libtutti.so.$(VERSION)
SONAME = libtutti.so.$(MAJOR)
CLI = $(BUILD)/tutti
# The command without its main, so that tests and fuzzers reach its parsers.
CLI_PARTS = $(BUILD)/libcli.a
SUPPORT = $(BUILD)/libtestsupport.a
BENCH = $(BUILD)/bench/tutti-bench
# The benchmark of the GPU path: in a build with CUDA only.
GPU_BENCH = $(BUILD)/bench/tutti-gpu
GPU_BENCH_CU = $(addprefix $(BUILD)/obj/bench/gpu/,kernels.cu.o table.cu.o)
TESTS = $(call prog,$(TEST_SRC))
FUZZERS = $(call prog,$(FUZZ_SRC))
SOAKS = $(call prog,$(SOAK_SRC))
MICRO = $(patsubst bench/micro/%.c,$(BUILD)/micro/%,$(MICRO_SRC))
EXAMPLES = $(call prog,$(EXAMPLE_SRC))
TEST_LIBS = $(SUPPORT) $(CLI_PARTS) $(PARTS)

.PHONY: all lib cli cuda gpu-pack demo demo-vllm test test-vllm test-vllm-full test-nvme proof-nvme test-programs \
	check tidy bench bench-programs fuzz fuzz-programs soak wheel test-python sanitize sanitize-programs \
	asan-programs tsan-programs kmod fuzz-kmod install-kmod install clean help FORCE
.DELETE_ON_ERROR:
.SUFFIXES:

all: lib cli ## library (static, shared) and the command tutti
lib: $(STATIC) $(BUILD)/libtutti.so $(BUILD)/tutti.pc
cli: $(CLI) $(BUILD)/man/tutti.1 $(BUILD)/tutti.bash

# ---- how things are made ----

# Holds the flags of this directory; newer than every object when they change.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)' > $@
FORCE:

# private: not the flags file's, which is made before them.
$(BUILD)/obj/test/%.o $(BUILD)/obj/bench/micro/%.o $(BUILD)/obj/bench/gpu/%.o: private CPPFLAGS += $(TEST_CPPFLAGS)

# The GPU's kernels, compiled for a CPU (test/exec/sim.h): what CUDA has is found in sim first.
SIM_OBJ = $(addprefix $(BUILD)/obj/test/exec/,sim.o sim_threads.o sim_large.o sim_small.o)
$(SIM_OBJ): private CPPFLAGS := -Itest/exec/sim $(CPPFLAGS) $(TEST_CPPFLAGS) -DIO_SUMMER_WARPS=2u
$(SIM_OBJ): private CFLAGS += -fno-strict-aliasing -Wno-unknown-pragmas -Wno-maybe-uninitialized -Wno-unused-variable

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	@$(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
# One warp of it fits into what a matrix product leaves of an SM.
$(BUILD)/obj/src/exec/io_small.cu.o: NVCC_FLAGS += -maxrregcount 32
-include $(CUDA_OBJ:.o=.d) $(GPU_BENCH_CU:.o=.d)

# Archives are made anew (an object whose source is gone must not stay), by appending: two rooms may have a header.c.
define archive
@echo "  AR    $@"
@mkdir -p $(@D)
@rm -f $@
@$(AR) qcs $@ $(filter %.o,$^)
endef

define link
@echo "  LINK  $@"
@mkdir -p $(@D)
@$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(filter %.a,$^)
endef

$(STATIC): $(call obj,$(LIB_SRC)) $(CUDA_OBJ)
	@$(LD) -r $^ -o $(BUILD)/obj/tutti.o
	@$(OBJCOPY) --wildcard --keep-global-symbol='tutti_*' --keep-global-symbol='gio_*' $(BUILD)/obj/tutti.o
	@echo "  AR    $@"
	@rm -f $@
	@$(AR) rcs $@ $(BUILD)/obj/tutti.o
$(PARTS): $(call obj,$(LIB_SRC)) $(CUDA_OBJ)
	$(archive)
$(CLI_PARTS): $(call obj,$(filter-out src/cli/main.c,$(CLI_SRC)))
	$(archive)
$(SUPPORT): $(call obj,$(SUPPORT_SRC))
	$(archive)

$(SHARED): $(call obj,$(LIB_SRC)) $(CUDA_OBJ) tools/libtutti.map
	@echo "  LINK  $@"
	@$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=tools/libtutti.map -Wl,-z,defs \
		$(filter %.o,$^) $(LIBS) -o $@
$(BUILD)/libtutti.so: $(SHARED)
	@ln -sf $(<F) $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@

$(CLI): $(call obj,$(CLI_SRC)) $(STATIC)
	$(link) $(CLI_LIBS) -o $@
$(TESTS) $(SOAKS): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_LIBS)
	$(link) $(CLI_LIBS) -o $@
$(FUZZERS): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_LIBS)
	$(link) -fsanitize=fuzzer $(CLI_LIBS) -o $@
$(MICRO): $(BUILD)/micro/%: $(BUILD)/obj/bench/micro/%.o $(TEST_LIBS)
	$(link) $(CLI_LIBS) -o $@
$(BENCH): $(call obj,$(BENCH_SRC)) $(STATIC)
	$(link) $(CLI_LIBS) -o $@
$(GPU_BENCH): $(call obj,$(GPU_BENCH_SRC)) $(GPU_BENCH_CU) $(TEST_LIBS)
	$(link) $(CLI_LIBS) -o $@
$(EXAMPLES): $(BUILD)/%: $(BUILD)/obj/%.o $(STATIC)
	$(link) $(LIBS) -o $@

# Made every time: PREFIX may be another one than the last time.
$(BUILD)/tutti.pc: tutti.pc.in FORCE
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# Man pages and completion come from the tables that also give --help.
$(BUILD)/man/tutti.1: $(CLI)
	@mkdir -p $(@D)
	@for v in $$($(CLI) help --format json | grep -o '"verb": *"[a-z-]*"' | cut -d '"' -f 4); do \
		$(CLI) help --man $$v > $(@D)/tutti-$$v.1 || exit; done
	@$(CLI) help --man > $@
$(BUILD)/tutti.bash: $(CLI)
	@$(CLI) help --completion > $@

-include $(patsubst %.o,%.d,$(call obj,$(LIB_SRC) $(CLI_SRC) $(TEST_SRC) $(SUPPORT_SRC) $(FUZZ_SRC) $(SOAK_SRC) \
	$(BENCH_SRC) $(MICRO_SRC) $(GPU_BENCH_SRC) $(EXAMPLE_SRC)))

# ---- the GPU ----

cuda: ## with the GPU executor, into $(BUILD)/cuda: library, command, tests, micro benchmarks (needs nvcc)
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/cuda CUDA=1 all test-programs bench-programs

# What tools/gpu-check takes to a machine with a GPU that has neither network nor -dev packages: programs with these
# libraries inside, and the libraries and headers to build them there.
GPU_PACK = .carry/gpu
GPU_PROGRAMS = tutti test/exec/test_cuda test/exec/test_gpu_streams test/core/test_faults test/core/test_timeouts \
	test/core/test_completions test/core/test_standin examples/gio_copy bench/tutti-gpu
GPU_LIBS = uring xxhash crypto jansson lzma
GPU_HEADERS = liburing.h liburing xxhash.h openssl jansson.h jansson_config.h lzma.h lzma
gpu-pack: ## programs and libraries for tools/gpu-check on another machine, into .carry/gpu/pack.tgz
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/pack CUDA=1 LIBS_STATIC=1 \
		$(addprefix $(BUILD)/pack/,$(GPU_PROGRAMS))
	@rm -rf $(GPU_PACK) $(BUILD)/pack/out && mkdir -p $(GPU_PACK) $(BUILD)/pack/out/lib $(BUILD)/pack/out/include
	@for p in $(GPU_PROGRAMS); do strip -o $(BUILD)/pack/out/$$(basename $$p) $(BUILD)/pack/$$p || exit; done
	@for l in $(GPU_LIBS); do \
		strip -g -o $(BUILD)/pack/out/lib/lib$$l.a "$$($(CC) -print-file-name=lib$$l.a)" || exit; done
	@for h in $(GPU_HEADERS); do for d in /usr/include /usr/include/x86_64-linux-gnu; do \
		[ ! -e $$d/$$h ] || cp -r $$d/$$h $(BUILD)/pack/out/include/; done; done
	@tar -czf $(GPU_PACK)/pack.tgz -C $(BUILD)/pack/out .
	@du -sh $(GPU_PACK)/pack.tgz

# ---- the Python package ----

PYTHON = python3
DIST = $(BUILD)/python/$(if $(CUDA),dist-cuda,dist)
wheel: ## Python wheel, library inside, into $(BUILD)/python/dist; CUDA=1: with the GPU executor, into .../dist-cuda
	$(PYTHON) -m pip wheel --no-deps -w $(DIST) ./python $(if $(CUDA),-C cmake.define.TUTTI_CUDA=ON)
test-python: ## the wheel in a fresh virtual environment, and its tests
	@$(RUN) --jobs 1 --timeout 900 test/python/test_package.sh

# ---- vLLM ----

# A folder outside of the build, because installing vLLM takes minutes. Exit 77: it can't be installed here.
VLLM_VENV = /var/tmp/tutti-vllm
VLLM_VERSION = 0.32.0
in_vllm = @test/vllm/install.sh $(VLLM_VENV) $(VLLM_VERSION) || { [ $$? -eq 77 ] || exit 1; \
	echo "0 passed, 0 failed, 1 skipped"; exit 0; }; $(VLLM_VENV)/bin/python $(1)
test-vllm: ## the connector in a real vLLM on CPU: installs it into VLLM_VENV, then ten engines
	$(call in_vllm,test/vllm/run.py $(VLLM_VENV))
test-vllm-full: ## two ranks, older versions of vLLM, and other caches on the same requests: an hour
	$(call in_vllm,test/vllm/full.py $(VLLM_VENV))
demo-vllm: ## two questions on one document in a real vLLM, and one after a restart: times to the first token
	$(call in_vllm,test/vllm/demo.py $(VLLM_VENV))

# ---- trying it ----

demo: all ## a pool in a file, real documents, a kill in the middle, a table and a plot
	$(CLI) demo

bench-programs: $(if $(BENCH_SRC),$(BENCH)) $(MICRO) $(if $(CUDA),$(GPU_BENCH))
bench: all bench-programs ## every number of the README; writes $(BUILD)/bench.json
	BUILD=$(BUILD) bench/run $(BENCH_ARGS)

# ---- proving it ----

# WERROR=0: gcc's flow warnings are less exact on instrumented code; the plain builds are the strict ones.
UBSAN = undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
ASAN = BUILD=$(BUILD)/asan WERROR=0 CFLAGS_EXTRA='-fsanitize=address,$(UBSAN)'
TSAN = BUILD=$(BUILD)/tsan WERROR=0 CFLAGS_EXTRA='-fsanitize=thread'
FUZZ = BUILD=$(BUILD)/fuzz WERROR=0 CC=clang CFLAGS_EXTRA='-fsanitize=fuzzer-no-link,address,$(UBSAN)'
TSAN_TESTS = $(filter $(foreach r,$(TSAN_ROOMS),$(BUILD)/test/$(r)/%),$(TESTS))
ASAN_PROGRAMS = $(patsubst $(BUILD)/%,$(BUILD)/asan/%,$(TESTS))
TSAN_PROGRAMS = $(patsubst $(BUILD)/%,$(BUILD)/tsan/%,$(TSAN_TESTS))
FUZZ_PROGRAMS = $(patsubst $(BUILD)/%,$(BUILD)/fuzz/%,$(FUZZERS))
# Tests fork from programs with threads; ThreadSanitizer gives up there unless told not to.
RUN = BUILD=$(BUILD) CC='$(CC)' TSAN_OPTIONS=die_after_fork=0 \
	FUZZ_SECONDS=$(FUZZ_SECONDS) SOAK_SECONDS=$(SOAK_SECONDS) tools/run-tests

test-programs: all $(TESTS) $(EXAMPLES)
asan-programs: $(CLI) $(TESTS)
tsan-programs: $(TSAN_TESTS)
fuzz-programs: $(FUZZERS)
sanitize-programs:
	@$(MAKE) --no-print-directory -k $(ASAN) asan-programs; status=$$?; \
	$(MAKE) --no-print-directory -k $(TSAN) tsan-programs && exit $$status

# A build that fails counts as a failed test, and what was built is still run: the last line is always the sum.
test: ## all test programs and script tests; last line: N passed, N failed, N skipped
	@$(MAKE) --no-print-directory -k test-programs || failed=--build-failed; \
	$(RUN) $$failed $(TESTS) $(SCRIPT_TESTS)
sanitize: ## all tests under ASan and UBSan, those of shared code under TSan
	@$(MAKE) --no-print-directory sanitize-programs || failed=--build-failed; \
	$(RUN) $$failed $(ASAN_PROGRAMS) $(TSAN_PROGRAMS)
fuzz: ## every fuzzer for FUZZ_SECONDS (needs clang)
	@$(MAKE) --no-print-directory -k $(FUZZ) fuzz-programs || failed=--build-failed; \
	$(RUN) $$failed $(FUZZ_PROGRAMS)

# In the guest everything is static: it has no libraries. (glibc warns of name services, which nobody here uses.)
NVME = $(BUILD)/nvme
$(NVME)/tutti: $(call obj,$(CLI_SRC)) $(STATIC)
	@mkdir -p $(@D)
	$(link) -static $(CLI_LIBS) -o $@ 2> $@.log || { cat $@.log >&2; exit 1; }
NVME_TESTS = $(addprefix test/,core/test_drive core/test_claim kmod/test_kmod kmod/test_dmabuf kmod/test_random)
NVME_PROGRAMS = $(addprefix $(NVME)/,$(notdir $(NVME_TESTS)))
$(NVME_PROGRAMS): $(NVME)/%: $(TEST_LIBS) $(call obj,$(addsuffix .c,$(NVME_TESTS)))
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(ALL_LDFLAGS) $(filter %/$*.o,$^) $(TEST_LIBS) -static $(CLI_LIBS) -o $@ 2> $@.log || \
		{ cat $@.log >&2; exit 1; }

# The kernel module, and the exporter that its tests use, for each kernel whose headers are here and for the built tree
# NVME_KERNEL (tools/nvme-guest/mkguest), below build/kmod/VERSION. Sources are copied there: kernels build beside the
# source.
KMOD = kmod/tutti_nvme/tutti_nvme.c kmod/tutti_nvme/Kbuild
KMOD_EXPORT = kmod/test/tutti_export.c kmod/test/export.h kmod/test/Kbuild
NVME_TREE = $(shell cat $(NVME_KERNEL)/include/config/kernel.release 2> /dev/null)
KERNELS = $(patsubst /lib/modules/%/build/,%,$(wildcard /lib/modules/*/build/)) $(if $(NVME_KERNEL),$(NVME_TREE))
KMODS = $(foreach k,$(KERNELS),$(BUILD)/kmod/$(k)/tutti_nvme.ko $(BUILD)/kmod/$(k)/export/tutti_export.ko)
define kbuild
@echo "  KMOD  $*"
@mkdir -p $(@D)/wire && cp $(filter-out src/wire/%,$^) $(@D) && cp src/wire/kmod.h $(@D)/wire
+@$(MAKE) --no-print-directory -s -C $(if $(filter $*,$(NVME_TREE)),$(NVME_KERNEL),/lib/modules/$*/build) \
	M=$(abspath $(@D)) W=1 \
	$(if $(shell command -v sparse),C=2) CONFIG_DEBUG_INFO_BTF_MODULES= modules > $(@D)/log 2>&1 || \
	{ cat $(@D)/log >&2; exit 1; }
@! grep -E 'warning:|error:' $(@D)/log >&2
endef
kmod: $(KMODS) ## the kernel module tutti_nvme, for each kernel whose headers are installed
	@[ -n '$(KMODS)' ] || { echo 'kmod: no kernel headers below /lib/modules; see docs/nvme.md' >&2; exit 3; }
$(BUILD)/kmod/%/tutti_nvme.ko: $(KMOD) src/wire/kmod.h
	$(kbuild)
$(BUILD)/kmod/%/export/tutti_export.ko: $(KMOD_EXPORT) src/wire/kmod.h
	$(kbuild)
install-kmod: ## the module's source to DKMS's place; then: dkms install tutti_nvme/VERSION
	install -d $(DESTDIR)/usr/src/tutti_nvme-$(VERSION)/wire
	install -m 644 kmod/tutti_nvme/* $(DESTDIR)/usr/src/tutti_nvme-$(VERSION)
	install -m 644 src/wire/kmod.h $(DESTDIR)/usr/src/tutti_nvme-$(VERSION)/wire
	sed -i 's/@VERSION@/$(VERSION)/' $(DESTDIR)/usr/src/tutti_nvme-$(VERSION)/dkms.conf

NVME_BOOTS =
NVME_READY = $(shell command -v qemu-system-x86_64 > /dev/null && command -v busybox > /dev/null && echo yes)
NVME_NEEDS = $(if $(NVME_READY),$(NVME_PROGRAMS) $(NVME)/tutti $(KMODS))
test-nvme: $(NVME_NEEDS) ## QEMU's NVMe drives, in a guest (deps-install nvme)
	@BUILD=$(BUILD) tools/nvme-guest/run $(NVME) $(NVME_BOOTS)

proof-nvme: ## list, claim, format, replay, release on a drive of QEMU's, as a user sees it
	@$(MAKE) --no-print-directory test-nvme NVME_BOOTS=translating NVME_PARTS=proof > $(BUILD)/proof.log || \
		{ cat $(BUILD)/proof.log; exit 1; }
	@sed -n '/^# cell proof/,/^# end/{/^# cell/d;/^# end/d;p}' $(NVME)/translating.log

fuzz-kmod: ## a minute of random calls to the kernel module, in a guest, with an IOMMU that translates and without
	@$(MAKE) --no-print-directory test-nvme NVME_BOOTS='translating none' NVME_APPEND=seconds=60 \
		NVME_PARTS='30-module 90-faults'

soak: all $(SOAKS) ## what runs for hours (test/soak), each for SOAK_SECONDS
	@$(RUN) --timeout $$(($(SOAK_SECONDS) + 600)) --jobs 1 $(SOAKS) $(sort $(wildcard test/soak/soak_*.sh))
check: ## test, sanitize and a short fuzz in one sum
	@$(MAKE) --no-print-directory -k test-programs || failed=--build-failed; \
	$(MAKE) --no-print-directory sanitize-programs || failed=--build-failed; \
	$(MAKE) --no-print-directory -k $(FUZZ) fuzz-programs || failed=--build-failed; \
	$(RUN) $$failed $(TESTS) $(SCRIPT_TESTS) $(ASAN_PROGRAMS) $(TSAN_PROGRAMS) $(FUZZ_PROGRAMS)

tidy: ## include rules, names, lengths, forbidden calls, dead files, format, links
	@tools/tidy

# ---- keeping it ----

BIN = $(DESTDIR)$(PREFIX)/bin
LIB = $(DESTDIR)$(LIBDIR)
INCLUDE = $(DESTDIR)$(PREFIX)/include/tutti
MAN = $(DESTDIR)$(PREFIX)/share/man/man1
COMPLETION = $(DESTDIR)$(PREFIX)/share/bash-completion/completions

TRACES = $(DESTDIR)$(PREFIX)/share/tutti/traces

install: all ## PREFIX (/usr/local), DESTDIR: headers, libraries, tutti.pc, man pages, completion, command, traces
	install -d $(BIN) $(LIB)/pkgconfig $(INCLUDE) $(MAN) $(COMPLETION) $(TRACES)
	install -m 644 include/tutti/*.h $(INCLUDE)
	install -m 644 $(STATIC) $(LIB)
	install -m 755 $(SHARED) $(LIB)
	ln -sf $(notdir $(SHARED)) $(LIB)/$(SONAME)
	ln -sf $(SONAME) $(LIB)/libtutti.so
	install -m 644 $(BUILD)/tutti.pc $(LIB)/pkgconfig
	install -m 755 $(CLI) $(BIN)
	install -m 644 $(BUILD)/man/*.1 $(MAN)
	install -m 644 $(BUILD)/tutti.bash $(COMPLETION)/tutti
	install -m 644 traces/* $(TRACES)

clean: ## removes $(BUILD)
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1 /p' Makefile | sed 's|[$$](BUILD)|$(BUILD)|' | \
		while read -r target what; do printf 'make %-10s %s\n' "$$target" "$$what"; done
