# Sourced by the scripts that build hostler: one static build serves the tests, the proofs and the image. Without it, cargo links the
# machine's C library dynamically, which is what a user's `cargo build --release` does.
# shellcheck shell=bash

CARGO_BUILD_TARGET=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_BUILD_TARGET
# For this target alone: guests that tests build keep their own flags.
declare -x "CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$CARGO_BUILD_TARGET")_RUSTFLAGS=-Ctarget-feature=+crt-static"
# Where the binaries lie.
release=${CARGO_TARGET_DIR:-$PWD/target}/$CARGO_BUILD_TARGET/release

# Builds all of the workspace, for one set of features: whatever is built alone may ask a dependency for fewer, and build it again.
build_all() { cargo build --release --workspace --all-targets --locked "$@"; }
