# `make demo` and `make test` do all the set-up themselves; the second time they start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .bench
SITE := build/site

.PHONY: demo test docs bench zoo wheel lint types browser clean

demo: $(READY)
	$(BIN)/python examples/demo.py

# A process for each core, with one thread, in random order. OPTIONS are those of pytest: OPTIONS="-m 'not slow'".
test: lint types browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(OPTIONS)

# dubito against its peers, which get an environment of their own; OPTIONS=--quick only tries it.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.peers $(OPTIONS)

# The trained networks that come with dubito: trains, measures and packs those that are not there; hours.
zoo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.zoo $(OPTIONS)

# The source archive and the wheel in dist, installed into a new environment and tried there.
wheel: $(READY)
	$(BIN)/python .ci/wheel.py $(OPTIONS)

# The documentation as a site in build/site: runs the tutorials, checks all links. A page whose code has not changed is not run again.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir $(SITE)
	$(BIN)/python -m site_builder.check $(SITE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

$(VENV)/.docs: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

$(BENCH)/.ready: constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	PIP_CONSTRAINT=constraints.txt $(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[train]' huggingface_hub
	$(BENCH)/bin/python -m benchmarks.peers.install
	touch $@

# The browser tests need Debian's chromium; without it they are skipped, or fail where CI=true.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing chromium for the browser tests ..." \
	&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } \
	|| echo "chromium is neither here nor installable by this user: browser tests will not run."

clean:
	rm -rf $(VENV) $(BENCH) demo build dist src/*.egg-info
