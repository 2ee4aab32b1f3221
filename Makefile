# The front door. Every target installs the Debian packages that it lacks (tools/install-packages).

PREFIX ?= /usr/local
library := $(CURDIR)/build/release/liblanemalloc.so
# Not expanded by make, so that the command is taken as it was written.
export LANEMALLOC_RUN_CMD := $(value CMD)

.DEFAULT_GOAL := help
.PHONY: help demo build tool check test test-long run bench seeds verify docs dist install lint clean

help: ## list the targets
	@echo 'usage: make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14

demo: build ## show in a minute or two what lanemalloc does
	@bench/demo.sh

build: ## build build/release/liblanemalloc.so and the static libraries
	@tools/build release

tool: ## build what the command `lanemalloc` needs beside the libraries
	@tools/build release lanemalloc_tool

check: ## before a commit, two minutes: layers, format, the unit tests
	@LANEMALLOC_TEST_DEPTH=least tests/run.sh layers format unit

test: ## every part of the tests at its least, ten minutes; ONLY='PART...' runs some
	@LANEMALLOC_TEST_DEPTH=least tests/run.sh $(ONLY)

test-long: ## what make test leaves out, most of an hour; ONLY='PART...' runs some
	@LANEMALLOC_TEST_DEPTH=rest tests/run.sh $(ONLY)

run: ## run CMD='program arguments' with lanemalloc preloaded
	@if [ -z "$$LANEMALLOC_RUN_CMD" ]; then \
	  echo "make run: say what to run, for example: make run CMD='python3 -c \"print(1)\"'" >&2; exit 2; fi
	@tools/build release >&2
	@env -u CMD -u LANEMALLOC_RUN_CMD -u MAKEFLAGS -u MFLAGS -u MAKEOVERRIDES -u MAKELEVEL -u MAKE_TERMOUT -u MAKE_TERMERR \
	  sh -c "LD_PRELOAD='$(library)'; export LD_PRELOAD; $$LANEMALLOC_RUN_CMD"

bench: build ## measure against other allocators
	@bench/run.sh

seeds: build ## run the source systems' experiments: their figures beside ours
	@bench/seeds.sh

verify: ## all tests with ten times the work, emulated machines, the linters: hours
	@tests/verify.sh

docs: ## make the site in build/docs/site: all pages with search, the reference of the headers
	@tools/make-site

dist: ## make a release in dist/: sources, wheels, an SBOM, checksums
	@tools/make-dist

install: build ## install under PREFIX (default /usr/local); DESTDIR is put before it
	@DESTDIR='$(DESTDIR)' cmake --install build/release --prefix '$(abspath $(PREFIX))'

lint: ## clang-tidy, shellcheck, pyflakes and mypy
	@tools/lint

clean: ## remove build/
	@rm -rf build
