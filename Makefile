# The commands of the project. `make demo` and `make test` work on a fresh Debian or Ubuntu machine:
# they install the packages that are missing first.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# 0 makes a package for CPUs alone.
CUDA ?= 1

.PHONY: all setup build demo test test-cuda asan tsan fuzz format check-format bench install package clean

all: build

setup:
	@scripts/setup.sh

build: setup
	@cmake --preset cpu -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)

demo:
	@$(MAKE) --no-print-directory setup
	@cmake --preset cpu -B $(BUILD) -DHEADWAY_TESTS=OFF > $(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS) --target headway
	@scripts/demo.sh $(BUILD)/src/cli/headway

test:
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DHEADWAY_TESTS=ON
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

# The same tests under AddressSanitizer and UBSan, and the threaded ones under ThreadSanitizer.
asan: setup
	@cmake --preset asan && cmake --build --preset asan -j $(JOBS)
	@ctest --test-dir build-asan --output-on-failure

tsan: setup
	@cmake --preset tsan && cmake --build --preset tsan -j $(JOBS)
	@ctest --test-dir build-tsan --output-on-failure

# The tests that need an NVIDIA GPU; they are skipped where there is none. Kernels are compiled for the
# GPU that is here, else for one real architecture, and to PTX of the oldest that is supported;
# `make package` compiles those of all architectures that are shipped.
CUDA_ARCHITECTURES ?= $(if $(wildcard /dev/nvidia0),native,80-virtual;90-real)
test-cuda:
	@scripts/setup.sh --cuda
	@cmake --preset cuda "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)"
	@echo "test-cuda: about 12 minutes of compiling on two cores (3 after make test), then 5 of tests on an H200"
	@cmake --build --preset cuda -j $(JOBS)
	@ctest --test-dir build-cuda -L cuda --output-on-failure

# Every fuzzer for FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
fuzz: setup
	@cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

format:
	@scripts/format.sh

check-format:
	@scripts/format.sh --check

bench: setup
	@cmake --preset cpu -B $(BUILD) -DHEADWAY_BENCH=ON && cmake --build $(BUILD) -j $(JOBS)
	@scripts/bench.sh $(BUILD)

install: setup
	@cmake --preset cpu -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) > $(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --install $(BUILD) --prefix $(PREFIX)

# An archive that runs where it is unpacked, with the demo model and, unless CUDA=0, NVIDIA's libraries.
PACKAGE = build-package$(if $(filter 0,$(CUDA)),-cpu,)
package:
	@scripts/setup.sh $(if $(filter 0,$(CUDA)),,--cuda-runtime)
	@cmake --preset package -B $(PACKAGE) -DHEADWAY_CUDA=$(CUDA) > $(PACKAGE).log 2>&1 || (cat $(PACKAGE).log; exit 1)
	@cmake --build $(PACKAGE) -j $(JOBS) --target headway
	@scripts/package.sh $(PACKAGE)

clean:
	rm -rf $(BUILD) build-*
