# Freehold: `make run` and `make test` on a fresh Debian 12 install what is missing, build
# everything and go.
#
#   make build      the command as target/freehold, its plugin for QEMU, the kernel as target/freehold-kernel, guest programs in target/guest
#   make run        build, then run a real program in the VM
#   make test       build, then every test: host crates, the rules of the house, end to end in QEMU
#   make test-long  what takes hours: fuzzers, failing allocations, SIGKILL in every call, where the image lies, which code runs at all
#   make lint       format and clippy, no warning let through; not part of make test, whose answer does not depend on the newest clippy
#   make bench      time the page allocator beside its peers, over 1 and 8 GiB, and bounce buffers beside Linux' algorithm
#   make install    into PREFIX (default /usr/local): command, kernel, guest programs, manual pages, shell completion
#   make uninstall  takes all of that away again
#   make deb        target/freehold_VERSION_amd64.deb, and the debug symbols as freehold-dbgsym
#   make static     target/freehold-static: the command without shared libraries, for machines with an older libc
#   make sbom       target/freehold-VERSION.cdx.json: what is shipped, with licences and sums (CycloneDX)

PREFIX ?= /usr/local
DESTDIR ?=
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := target
GUEST_CFLAGS := -std=gnu11 -O2 -Wall -Wextra -Wno-unused-result -static
BENCH_PROGRAMS := $(patsubst guest/%.c,$(TARGET)/guest/%,$(wildcard guest/bench/*.c))
GUEST_PROGRAMS := $(BENCH_PROGRAMS) \
	$(patsubst guest/%.c,$(TARGET)/guest/%,$(wildcard guest/*.c guest/conformance/*.c guest/workloads/*.c guest/tools/*.c))
# Programs that the command itself puts into guests.
GUEST_INSTALLED := init tools/phase workloads/near-cache workloads/needless workloads/node-calls workloads/transfers $(patsubst guest/%.c,%,$(wildcard guest/bench/*.c))

# Subcommands with a manual page of their own.
MAN_PAGES := run scope coverage bench lab sweep diff owns doctor completion man

.PHONY: static build run test test-long lint bench install stage uninstall deb sbom setup command kernel guest
.DEFAULT_GOAL := build

# Each of the two is linked by one thread for minutes. Cargo does not take make's job server.
build: setup
	@$(MAKE) --no-print-directory -j2 command kernel guest

setup:
	@tools/setup

command: setup
	@MAKEFLAGS= cargo build --quiet --release -p freehold -p freehold-scope-plugin --target-dir $(TARGET)
	@cp $(TARGET)/release/freehold $(TARGET)/freehold.new && mv $(TARGET)/freehold.new $(TARGET)/freehold
	@cp $(TARGET)/release/libfreehold_scope.so $(TARGET)/scope.new && mv $(TARGET)/scope.new $(TARGET)/libfreehold_scope.so

static: setup
	@MAKEFLAGS= CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
		cargo build --quiet --release -p freehold --target x86_64-unknown-linux-gnu --target-dir $(TARGET)/static
	@cp $(TARGET)/static/x86_64-unknown-linux-gnu/release/freehold $(TARGET)/freehold-static

kernel: setup
	@MAKEFLAGS= TARGET_DIR=$(TARGET) tools/build-kernel

guest: setup $(GUEST_PROGRAMS)

$(TARGET)/guest/%: guest/%.c $(wildcard guest/*/*.h)
	@mkdir -p $(dir $@)
	@$(CC) $(GUEST_CFLAGS) -o $@ $<

run: build
	$(TARGET)/freehold run --report always -- busybox sh -c 'uname -srm; echo "memory:"; free -m 2>/dev/null || head -n 3 /proc/meminfo; echo "all of it ran in the VM"'

test: build
	@tools/check-house
	@cargo run --quiet -p freehold-layers -- kernel
	@cargo run --quiet -p freehold-layers -- --shape 6 5 0 0 kernel mm machine cli scope tools # may shrink, not grow
	@cargo run --quiet -p freehold-supply -- check
	tools/host-coverage --compiled
	tools/broken-bounce --check && tools/broken-replica --check && tools/broken-merge --check # that make test-long breaks what is still there
	tools/test-long -l >/dev/null # that it can begin
	cargo test --quiet --workspace --exclude freehold
	tools/pack --check
	tools/deb --check
	tools/axe
	tools/selftest
	tools/stack-frames
	tools/decoded
	cargo test --quiet -p freehold

test-long: build
	@tools/test-long # stage by stage: tools/test-long -l

lint: setup
	cargo fmt --all --check
	rustfmt --check --edition 2024 --config-path rustfmt.toml examples/kernel/src/main.rs
	cargo clippy --quiet --workspace --lib --bins --tests --exclude freehold-kernel-image --exclude freehold-selftest -- -D warnings

bench: setup
	cargo run --quiet --profile bench -p freehold-buddy-bench -- 1
	cargo run --quiet --profile bench -p freehold-buddy-bench -- 8
	cargo run --quiet --profile bench -p freehold-buddy-bench -- 1 set-up
	cargo run --quiet --profile bench -p freehold-bounce-bench
	cargo run --quiet --release -p freehold-net --example scale

install: build
	@$(MAKE) --no-print-directory stage

# The part of `install` after the build; tools/deb uses it to lay out a package.
stage:
	install -D -m 755 $(TARGET)/freehold $(DESTDIR)$(PREFIX)/bin/freehold
	install -D -m 644 $(TARGET)/freehold-kernel $(DESTDIR)$(PREFIX)/lib/freehold/freehold-kernel
	install -D -m 644 $(TARGET)/libfreehold_scope.so $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_scope.so
	for program in $(GUEST_INSTALLED); do \
		install -D -m 755 $(TARGET)/guest/$$program $(DESTDIR)$(PREFIX)/lib/freehold/guest/$$program || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(TARGET)/freehold man > $(DESTDIR)$(PREFIX)/share/man/man1/freehold.1
	for page in $(MAN_PAGES); do \
		$(TARGET)/freehold man $$page > $(DESTDIR)$(PREFIX)/share/man/man1/freehold-$$page.1 || exit 1; done
	$(TARGET)/freehold completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/freehold
	$(TARGET)/freehold completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_freehold
	$(TARGET)/freehold completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/freehold.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/freehold $(DESTDIR)$(PREFIX)/share/man/man1/freehold.1 \
		$(patsubst %,$(DESTDIR)$(PREFIX)/share/man/man1/freehold-%.1,$(MAN_PAGES)) \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/freehold \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_freehold \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/freehold.fish
	rm -rf $(DESTDIR)$(PREFIX)/lib/freehold $(DESTDIR)$(PREFIX)/share/freehold # the latter: where it was once

sbom:
	@mkdir -p $(TARGET)
	@cargo run --quiet -p freehold-supply -- sbom > $(TARGET)/sbom.new
	@version=$$(sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"$$/\1/p' Cargo.toml) && \
		mv $(TARGET)/sbom.new $(TARGET)/freehold-$$version.cdx.json && echo "sbom: $(TARGET)/freehold-$$version.cdx.json"

deb: build
	tools/deb
