# make demo: train three encodings and compare their length extrapolation.
# make test: lint and run all but the long tests.
# make soak: run the long tests.
# make length-tasks, make code-lm: compare encodings and write docs/results.
# Takes hours; rerun to resume.
# make aot: compile configs/lm.py with the TPU compiler for memory and cost.
# Takes half an hour or more; rerun to resume.
# Targets create .venv with $(PYTHON) if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
RUNS ?= runs/demo
ENCODINGS := rope kerple_log dape_kerple_log
LENGTHS := 128,256,...,8192

ALL_ENCODINGS := nope rope alibi kerple_log fire fox dape_alibi dape_kerple_log \
  dape_fire dape_v2_kerple_log dape_static_kerple_log
SEEDS := 0 1 2

.PHONY: demo test soak lint clean length-tasks code-lm aot

demo: $(VENV)/.ready
	@set -e; for encoding in $(ENCODINGS); do \
	  $(BIN)/python train.py --config=configs/demo.py:$$encoding \
	    --config.seed=$(SEED) --workdir=$(RUNS)/$$encoding; \
	done
	$(BIN)/python eval.py --lengths=$(LENGTHS) --regions=8 \
	  --output=$(RUNS)/comparison \
	  --compare $(addprefix $(RUNS)/,$(ENCODINGS))

empty :=
comma := ,
commas = $(subst $(empty) ,$(comma),$(strip $(1)))

length-tasks: $(VENV)/.ready
	$(BIN)/python -m dape_jax.studies.tasks --config=configs/length_tasks.py \
	  --times=1,2,4,8,16 --samples=256 --output=runs/length_tasks \
	  --tasks=even_pairs,flip_flop,copy,passkey,bucket_sort,reverse_string \
	  --encodings=$(call commas,$(ALL_ENCODINGS) t5) --seeds=$(call commas,$(SEEDS))
	mkdir -p docs/results/length_tasks
	cd runs/length_tasks && cp *.json *.md *.png $(CURDIR)/docs/results/length_tasks

code-lm: $(VENV)/.ready
	@set -e; for seed in $(SEEDS); do for encoding in $(ALL_ENCODINGS); do \
	  $(BIN)/python train.py --config=configs/code_lm.py:$$encoding \
	    --config.seed=$$seed --workdir=runs/code_lm/$$encoding/seed$$seed; \
	done; done
	$(BIN)/python eval.py --lengths=128,256,...,16384 --regions=12 \
	  --output=runs/code_lm/comparison --compare $(foreach encoding,\
	  $(ALL_ENCODINGS),$(foreach seed,$(SEEDS),runs/code_lm/$(encoding)/seed$(seed)))
	mkdir -p docs/results/code_lm
	cd runs/code_lm/comparison && cp *.json *.md *.png $(CURDIR)/docs/results/code_lm

AOT_LINES := docs/results/aot/lines.jsonl
# Exit status 3: the program does not fit, which is also a result.
aot: AOT := PYTHONPATH=$(VENV)/libtpu $(BIN)/python -m dape_jax.compiler
aot: $(VENV)/.ready-test
	@set -e; mkdir -p $(dir $(AOT_LINES)); \
	compile() { $(AOT) --json=$(AOT_LINES) "$$@" || test $$? -eq 3; }; \
	for size in 125m 350m 1.3b 2.7b 6.7b; do \
	  for encoding in rope kerple_log dape_kerple_log dape_v2_kerple_log; do \
	    config=configs/lm.py:size=$$size,encoding=$$encoding; \
	    for slice in v5e:4x8 v5p:2x4x4 v6e:4x8; do \
	      compile --config=$$config --topology=$$slice --largest_batch; \
	    done; \
	    compile --config=$$config --topology=v5e:2x2 --eval_length=131072; \
	  done; \
	done; \
	for size in 125m 350m 1.3b 2.7b 6.7b; do \
	  compile --config=configs/lm.py:size=$$size,length=2048 --topology=v5e:4x8; \
	done; \
	for size in 2.7b 6.7b; do for slice in v5p:2x4x4 v6e:4x8; do \
	  compile --config=configs/lm.py:size=$$size --topology=$$slice --generate_code; \
	done; done
	$(AOT) --table=$(AOT_LINES) > $(dir $(AOT_LINES))table.md

PYTEST := $(BIN)/python -m pytest -n auto --dist=worksteal

test: lint
	$(PYTEST) -m "not soak"

soak: $(VENV)/.ready-test
	$(PYTEST) -m soak

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/pyink --check --quiet .

# Recreates an environment that an interrupted installation left incomplete.
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
# The TPU compiler for the tests, outside the environment: inside it, JAX would
# look for a TPU at every start.
	if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(BIN)/python -m pip install --quiet --target $(VENV)/libtpu libtpu; fi
	touch $@

clean:
	rm -rf $(VENV) runs
