# make demo: train three encodings on this machine and see how they extrapolate.
# make test: lint and run the tests. Both make their own .venv from $(PYTHON).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
RUNS ?= runs/demo
ENCODINGS := rope kerple_log dape_kerple_log
LENGTHS := 128,256,...,8192

.PHONY: demo test lint clean

demo: $(VENV)/.ready
	@set -e; for encoding in $(ENCODINGS); do \
	  $(BIN)/python train.py --config=configs/demo.py:$$encoding \
	    --config.seed=$(SEED) --workdir=$(RUNS)/$$encoding; \
	done
	$(BIN)/python eval.py --lengths=$(LENGTHS) --regions=8 \
	  --output=$(RUNS)/comparison \
	  --compare $(addprefix $(RUNS)/,$(ENCODINGS))

test: lint
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/pyink --check --quiet .

# A virtual environment that an interrupted install left behind is made anew.
$(VENV)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "dape_jax needs Python 3.11 or newer; $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1 || echo missing)." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 2; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -e '.[test]'
# The TPU compiler for the tests, beside the environment: within it, JAX would look
# for a TPU whenever it starts.
	if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(BIN)/python -m pip install --quiet --target $(VENV)/libtpu libtpu; fi
	touch $@

clean:
	rm -rf $(VENV) runs
