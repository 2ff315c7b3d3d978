# Everything runs in .venv, which is made on first use and remade when the requirements change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
SOURCES := modeling configuration training analysis benchmarks exchange hub_card serving scripts tests

.PHONY: quickstart test coverage test-slow check format conformance test-lens test-pages test-runtimes benchmark results results-smoke docs pictures clean

quickstart: $(READY)
	$(BIN)/python scripts/quickstart.py

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST)

# The same tests, half as long again for the counting of lines
coverage: $(READY)
	$(PYTEST) --cov=glassformer --cov-report=term:skip-covered --cov-fail-under=95

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	rm -rf build/check && $(BIN)/pip install -q --no-deps --target build/check .
	MYPYPATH=build/check $(BIN)/mypy -p glassformer

format: $(READY)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Hugging Face's own tests on our classes, from a checkout of transformers at the installed release
conformance: $(READY)
	@test -n "$(HF_SRC)" || { echo "usage: make conformance HF_SRC=<directory with transformers' tests/ and utils/>"; exit 2; }
	$(BIN)/pip install -q -c constraints.txt -e ".[conformance]"
	HF_SRC=$(HF_SRC) $(BIN)/python -m pytest -q -o addopts= -W ignore::pytest.PytestUnknownMarkWarning tests/conformance

# Our models in TransformerLens and bertviz
test-lens: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[lens]"
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_adapters.py

# The pages of `explain` and `demo`, in Debian's chromium where it is installed
test-pages: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[browser,demo]"
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_explain_page.py tests/test_demo.py

# Our models behind HTTP, in ONNX Runtime, as programs of torch, in llama.cpp, CTranslate2 and sentence-transformers
test-runtimes: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[serve,onnx,gguf]" httpx xllamacpp ctranslate2 sentence-transformers
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_serving.py tests/test_onnx.py tests/test_torch_export.py tests/test_gguf.py tests/test_exchange_folders.py

# Our models and those of other libraries in turns; e.g. make benchmark WHAT="train --quick"
benchmark: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[benchmark]"
	$(BIN)/glassformer benchmark $(WHAT)

# One recipe from nothing, all its seeds and its baseline; GLASSFORMER_DATA names the folder of the corpora
results: $(READY)
	@test -n "$(RECIPE)" || { echo "usage: make results RECIPE=NAME, one of those that \`glassformer recipes\` lists"; exit 2; }
	$(BIN)/python scripts/results.py $(RECIPE)
	$(BIN)/python scripts/catalog.py

results-smoke: $(READY)
	$(BIN)/python scripts/results.py --smoke

# docs/ as a site, in site/; a link that leads nowhere is an error
docs: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/build_docs.py

# The pictures of docs/how-it-works.md again, and the outputs of the notebooks
pictures: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	$(BIN)/python scripts/pictures.py
	cd docs/notebooks && $(abspath $(BIN))/jupyter execute --inplace --NotebookClient.record_timing=False *.ipynb

$(READY): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	# torch first and by its exact version: an index that has a CPU build of it is then asked for that one
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e ".[test]"
	touch $(READY)

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
