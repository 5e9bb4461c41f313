# Build, test and demo of ginlab. Each target installs what it needs and can be repeated. `make help` lists the targets.
#
# Variables: FEATURES (for `build`: mpi), STAGE (for `sqush`: laptop, cuda, efa), CARGO_TARGET_DIR (default target), CARGO_HOME.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check setup build dist wheel sqush bench report book clean

# Directories of a Rust that was installed in this run and is not on the shell's PATH yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(lastword $(sort $(wildcard /usr/lib/rust-1.*/bin)))

# Without a GPU the demo uses a profile with short compile times; see Cargo.toml.
PROFILE := $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia/version),release,demo)
GINLAB := $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/ginlab

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile

demo: ## Put over 1 and 4 rails between two ranks on this machine; verifies and writes demo.csv
	scripts/setup.sh demo
	scripts/build.sh --profile $(PROFILE)
	$(GINLAB) proxy --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check --csv demo.csv
	@printf '\nThe rows: %s\nWhat was run, and where: %s\n' "$(CURDIR)/demo.csv" "$(CURDIR)/demo.header.json"

test: ## Build, and run all tests that need no GPU
	scripts/setup.sh test
	scripts/test.sh

check: ## Check documentation, headers, loom, ptxas for all targets, pages, Miri, a bare Debian 13
	scripts/setup.sh test
	scripts/test.sh check

setup: ## Install missing packages for demo, test and check (Debian 12 and 13, Ubuntu)
	scripts/setup.sh test

build: ## Build target/release/ginlab; with MPI: make build FEATURES=mpi
	scripts/setup.sh $(if $(findstring mpi,$(FEATURES)),mpi,build)
	scripts/build.sh $(if $(FEATURES),--features $(FEATURES))

dist: ## Pack program, launch files, licences and checksums into one archive (target/dist)
	scripts/setup.sh build
	scripts/dist.sh

wheel: ## Pack the Python package with the program into a wheel (target/dist)
	scripts/setup.sh build
	scripts/dist.sh --wheel

sqush: ## Pack the Dockerfile's stage efa for enroot and Pyxis: target/dist/ginlab.sqsh
	scripts/sqush.sh $(if $(STAGE),--stage $(STAGE))

bench: build ## Run all checks and benchmarks of a machine with a GPU
	scripts/gpu-check.sh

report: build ## Write an HTML page of the newest results in data/: target/report/report.html
	scripts/report.sh

book: ## Build the pages as a book (mdBook): target/book/html/index.html
	scripts/setup.sh build
	scripts/book.sh

clean: ## Remove build outputs, except .venv
	rm -rf "$(or $(CARGO_TARGET_DIR),target)" demo.csv demo.header.json
