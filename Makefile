# SPDX-License-Identifier: Apache-2.0
BIN := .venv/bin
DIGITS := examples/digits

unexport PYTHONDONTWRITEBYTECODE  # without .pyc files each program that a test starts takes a second longer

.PHONY: demo test tests lint lint-c bench plain-c zoo npu-sweep gallery two-cores costs kernels kernel-table docs docs-site picture quant-study onnx-tests compile-time random-graphs \
	fuzz fuzz-graphs fuzz-networks fuzz-inputs fuzz-tflite hostile tutorial sweep cpu-paths big-endian compilers coverage mutants newest clean \
	setup setup-demo setup-sweep

DEMO := $(DIGITS)/digits_f32.onnx --calibration $(DIGITS)/calibration.npz --board rt1060

demo: setup-demo  ## quantize and compile the digits example, run it in the simulator, report
	$(BIN)/mcugen compile $(DEMO) -o build/demo
	$(BIN)/mcugen report $(DEMO) --data $(DIGITS)/eval.npz

test: lint tests  ## everything but the long sweeps

tests: setup  ## the tests of `make test`; SHARD=2/4: the second of four parts
	$(BIN)/pytest -n 2 --dist worksteal --durations 10 -m "not slow" $(SHARD:%=--shard %)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/codespell

lint-c: export PYTHONPATH := tests:tests/ops:tests/quantization:tests/training:tools
lint-c: setup  ## MISRA C:2012, clang-tidy, -fanalyzer, warnings: the C of every model of ../shared, and of every form; rewrites docs/reference/misra.md
	$(BIN)/python -W ignore tests/lint_variants.py build/lint
	$(BIN)/python -W ignore tools/lint_models.py --write-docs

BENCH ?= --write-docs docs/reference/figures/performance.md

bench: setup  ## compare with other compilers; rewrites docs/reference/figures/performance.md unless BENCH has other options
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python tools/bench.py $(BENCH)

npu-sweep: setup  ## cycles of every model of ../shared with and without an NPU; rewrites docs/reference/figures/npu.md
	$(BIN)/python -W ignore tools/npu_sweep.py --write-docs
	$(BIN)/python -W ignore tools/npu_sweep.py --recurrent --write-docs

zoo: setup  ## every model of ../shared, as given and quantized, on a board for each CPU; rewrites docs/reference/figures/zoo.md
	$(BIN)/python -W ignore tools/zoo.py --write-docs

two-cores: setup  ## models on both cores of a simulated chip; rewrites the table of docs/reference/figures/two_cores.md
	$(BIN)/python tools/two_cores.py

plain-c: setup  ## what plain C costs on an nRF52840; rewrites the table of docs/reference/figures/performance.md
	$(BIN)/python tools/plain_c.py

gallery: setup  ## the models of ../shared on some boards, by `mcugen explore`; rewrites docs/reference/figures/gallery.md
	$(BIN)/python tools/gallery.py

# {cpu} in CMSIS_NN_LIB stands for a board's CPU: lib/{cpu}/libcmsis-nn.a
costs kernel-table: export MCUGEN_CMSIS_NN_INCLUDE ?= $(CMSIS_NN_INCLUDE)
costs kernel-table: export MCUGEN_CMSIS_NN_LIB ?= $(CMSIS_NN_LIB)

costs: setup  ## measure all kernels on all CPUs, CMSIS-NN's too if it is there; rewrites boards/costs
	$(BIN)/python tools/measure_costs.py
	$(BIN)/python tools/measure_code.py

kernels: setup  ## schedule the steps of inner loops that changed; rewrites templates/kernels/loops/scheduled
	$(BIN)/python tools/schedule_loops.py

kernel-table: setup  ## our kernels and CMSIS-NN's, layer by layer; needs the library; rewrites docs/reference/kernels.md
	$(BIN)/python tools/kernel_table.py --write-docs docs/reference/kernels.md

docs: setup  ## rewrite the generated passages of the documents
	$(BIN)/python tools/write_docs.py
	PYTHONPATH=tests:tools $(BIN)/python -W ignore tests/exporters.py
	PYTHONPATH=tests:tests/ops:tests/quantization:tests/training:tools $(BIN)/python -W ignore tests/proofs.py 0 --write-docs

docs-site: setup  ## the documentation as a site that works offline: build/site/index.html
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

picture: export PYTHONPATH := tests:tools
picture: setup  ## the picture of README.md; needs chromium
	$(BIN)/python -W ignore tools/picture.py

quant-study: setup  ## accuracy of quantized models, by technique and by task; rewrites docs/reference/figures/quantization.md
	$(BIN)/python -W ignore tools/quant_study.py --write-docs
	$(BIN)/python -W ignore tools/task_study.py --write-docs $(if $(TFLITE),--tflite $(TFLITE))
	$(BIN)/python -W ignore tools/frontier.py --write-docs

onnx-tests: setup  ## all of ONNX's own tests; rewrites docs/reference/onnx_coverage.md
	$(BIN)/python -W ignore tools/onnx_tests.py --also rp2040 --also nrf52840 --also corstone300 \
		--write-docs docs/reference/onnx_coverage.md

random-graphs: setup  ## 200 random models, under the sanitizers
	$(BIN)/pytest -n 2 tests/test_random_graphs.py

FUZZ_GRAPHS ?= --seeds 1000
FUZZ_NETWORKS ?= --seeds 1000
FUZZ_INPUTS ?= --count 100000

fuzz: fuzz-graphs fuzz-networks fuzz-inputs fuzz-tflite  ## what models and files could be, by seed

fuzz-graphs: export PYTHONPATH := tests:tests/ops:tools
fuzz-graphs: setup  ## random graphs of everything, by seed; what fails is made small and kept in build/fuzz
	$(BIN)/python -W ignore tests/fuzz_graphs.py $(FUZZ_GRAPHS)

fuzz-networks: export PYTHONPATH := tests:tests/ops:tools
fuzz-networks: setup  ## random structured networks, quantized in every way, on this computer and on boards, by seed
	$(BIN)/python -W ignore tests/fuzz_networks.py $(FUZZ_NETWORKS)

fuzz-inputs: setup  ## damaged and made-up files and options: no traceback, no crash, no hang
	$(BIN)/python tools/fuzz_inputs.py $(FUZZ_INPUTS)

fuzz-tflite: export PYTHONPATH := tests:tools
fuzz-tflite: setup  ## 100,000 damaged .tflite files, by seed: no exception, no hang, little memory
	$(BIN)/python -W ignore tools/fuzz_tflite.py $(FUZZ_TFLITE)

hostile: setup  ## the corpus of hostile input, whole
	PYTHONPATH=tests $(BIN)/python tools/hostile.py

tutorial: build/train-pytorch build/train-keras  ## train the tutorial's networks; rewrites examples/tutorial
	build/train-pytorch/bin/python examples/tutorial/train_pytorch.py examples/tutorial/pytorch
	build/train-keras/bin/python examples/tutorial/train_keras.py examples/tutorial/keras

build/train-pytorch build/train-keras: pyproject.toml
	$(BIN)/python -m venv --clear $@
	$@/bin/pip install --quiet --disable-pip-version-check -e '.[$(subst -pytorch,,$(@F))]'
	touch $@

sweep: setup-sweep build/train-pytorch build/train-keras  ## the long tests; one that was interrupted, or failed, goes on
	$(BIN)/pytest -n 2 --dist worksteal -m slow --resume build/sweep.txt
	MCUGEN_EVERYWHERE=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/ops
	rm build/sweep.txt

# Their products saturate in ONNX Runtime where a CPU has AVX2 but no VNNI; test_session.py is of them alone.
ORACLES := test_session or qlinear_conv or qlinear_matmul or integer_products_are_exact or microsofts_operators \
	or an_integer_bias_stays_exact

cpu-paths: setup  ## quantize and report on this CPU, one without AVX and one without VNNI (QEMU): equal figures
	$(BIN)/python tools/cpu_paths.py
	$(BIN)/python tools/cpu_paths.py --tests tests/evaluation/test_session.py tests/passes/test_convert_qdq.py \
		tests/ops/test_matmul.py -k "$(ORACLES)"

compile-time: setup  ## seconds of CPU that compiling takes, and how they grow with the number of nodes
	$(BIN)/python tools/compile_time.py

compilers: setup-sweep  ## the same bits by every compiler at every level; goes on where it was; rewrites docs/reference/figures/tests.md
	$(BIN)/python -W ignore tools/same_bits.py ../shared/models
	$(BIN)/python -W ignore tools/same_bits.py ../shared/models --boards host,nrf52840,rp2040 --plain --write-docs

big-endian: setup  ## the tests of all operators on a big-endian CPU
	CC="powerpc-linux-gnu-gcc -static" $(BIN)/pytest -n 2 -m "not qemu and not slow" tests/ops $(LITTLE:%=--deselect '%')

# Overlaps are exact only where the lower byte comes first; sin of glibc has an instruction (mffsl) that QEMU 7.2 lacks.
LITTLE := tests/ops/test_overlaps_others.py::test_elementwise \
	tests/ops/test_elementwise.py::test_every_function_of_every_element_type[float64]

coverage: setup  ## lines and branches that the tests reach, of mcugen/ and of the generated C; rewrites docs/reference/figures/tests.md
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[coverage]'
	$(BIN)/python tools/measure_coverage.py --write-docs

mutants: setup  ## a mutation score of passes, LIR, memory, quantization and numerics, on a sample; rewrites docs/reference/figures/tests.md
	$(BIN)/python tools/mutants.py --write-docs

newest: setup  ## the newest versions of all packages, which make test then has to pass with; rewrites tools/constraints.txt
	$(BIN)/python -m venv --clear build/newest
	build/newest/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	build/newest/bin/pip freeze --exclude-editable > tools/constraints.txt

setup:
	@sh tools/setup.sh test

setup-demo:
	@sh tools/setup.sh demo

setup-sweep:
	@sh tools/setup.sh sweep

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
