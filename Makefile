# One word a task. What each does, and how to run a part of it: docs/develop/hacking.md.

CARGO ?= cargo
# Optimised, with assertions: fast enough for a thousand simulated worlds, strict enough to find what is wrong in them.
PROFILE := --profile ci --locked
ARGS ?=

.PHONY: check deb static demo test lint fmt page screenshots tidy e2e api-fuzz deny bench fuzz torture packages toolchain

demo: toolchain page
	$(CARGO) run --quiet --release --locked --package hotset -- demo $(ARGS)

test: toolchain packages page lint deny
	@# The end-to-end tests take the binary that this builds too. Built by itself it would have other features of its dependencies, and all of them twice.
	HOTSET_BIN=$${CARGO_TARGET_DIR:-$(CURDIR)/target}/ci/hotset CARGO=$(CARGO) \
	  scripts/test $(PROFILE) --workspace --lib --bins --tests
	fuzz/run decode 200000 -verbosity=0

# What breaks most often, in a few minutes: format, lint, unit tests, the repository's rules, simulated worlds.
check: toolchain page lint
	$(CARGO) test $(PROFILE) --workspace --lib --bins --test repository
	$(CARGO) test $(PROFILE) --package lab --test all -- administrator:: torture:: sabotage::

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(PROFILE) --workspace --all-targets -- -D warnings
	@# The fuzzers are a workspace of their own: a rename that breaks them is told here and not after all tests.
	$(CARGO) check --quiet --locked --manifest-path fuzz/Cargo.toml --all-features --bins
	@scripts/page lint

fmt:
	$(CARGO) fmt --all
	@scripts/page fmt

page:
	@scripts/page build

screenshots: page packages
	$(CARGO) build $(PROFILE) --package hotset
	HOTSET_BIN=$${CARGO_TARGET_DIR:-$(CURDIR)/target}/ci/hotset scripts/page screenshots $(abspath $(or $(ARGS),out/screenshots))

tidy:
	$(CARGO) test $(PROFILE) --package tidy

e2e: packages page
	$(CARGO) build $(PROFILE) --package hotset --package rbd --features hotset/sabotage
	$(CARGO) test $(PROFILE) --package e2e -- $(ARGS)

api-fuzz: toolchain
	$(CARGO) build $(PROFILE) --package hotset
	scripts/api-fuzz $(ARGS)

deb: toolchain page
	scripts/deb

static: toolchain page
	@scripts/static

deny:
	scripts/deny

bench: toolchain
	scripts/packages bench
	$(CARGO) build --release --locked --package hotset --package bench
	$(CARGO) run --release --locked --package bench -- $(ARGS)

fuzz: toolchain packages
	fuzz/run decode 10000000 -verbosity=0
	fuzz/run iscsi 10000000 -verbosity=0
	fuzz/run session 100000 -verbosity=0
	fuzz/run trace 1000000 -verbosity=0
	fuzz/run scsi 10000000 -verbosity=0 -max_len=160
	fuzz/run vhost_user 5000000 -verbosity=0
	fuzz/run iscsi_session 100000 -verbosity=0 -max_len=600 -len_control=0 -timeout=60

torture: toolchain
	scripts/torture $(ARGS)

packages:
	scripts/packages

toolchain:
	@command -v $(CARGO) >/dev/null || { \
	  echo "cargo is missing: install Rust with rustup (https://rustup.rs); the version is pinned in rust-toolchain.toml" >&2; exit 1; }
