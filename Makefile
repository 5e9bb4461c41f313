# Two commands matter: `make demo` and `make test`. Both set up what they need and may be run again at any time.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test setup build dist bench report clean

# Where a Rust that was installed moments ago lies, before any shell knows of it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(lastword $(sort $(wildcard /usr/lib/rust-1.*/bin)))

# Without a GPU the demo is built by a profile that is compiled sooner; see Cargo.toml.
PROFILE := $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia/version),release,demo)
GINLAB := $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/ginlab

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile

demo: ## Put over 1 and 4 rails between two ranks on this machine, verified; writes demo.csv
	scripts/setup.sh demo
	scripts/build.sh --profile $(PROFILE)
	$(GINLAB) proxy --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check --csv demo.csv
	@printf '\nThe rows: %s\nWhat was run, and where: %s\n' "$(CURDIR)/demo.csv" "$(CURDIR)/demo.header.json"

test: ## Everything that can be tested without a GPU
	scripts/setup.sh test
	scripts/test.sh

setup: ## Install what demo and test need and is missing (Debian 12 and 13, Ubuntu)
	scripts/setup.sh test

build: ## Build target/release/ginlab; with MPI: make build FEATURES=mpi
	scripts/setup.sh $(if $(findstring mpi,$(FEATURES)),mpi,build)
	scripts/build.sh $(if $(FEATURES),--features $(FEATURES))

dist: ## One file to carry to a machine: program, launch files, licences, checksums (target/dist)
	scripts/setup.sh build
	scripts/dist.sh

bench: build ## The check on a machine with a GPU
	scripts/gpu-check.sh

report: build ## The page of the newest results in data/: target/report/report.html
	scripts/report.sh

clean: ## Remove what was built; .venv stays
	rm -rf "$(or $(CARGO_TARGET_DIR),target)" demo.csv demo.header.json
