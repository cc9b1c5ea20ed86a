#!/bin/sh
# Builds the guest: build.sh OUT.wasm
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")"
if [ ! -d "$(rustc --print target-libdir --target wasm32-wasip2)" ]; then
    rustup target add wasm32-wasip2 >&2
fi
# The tests of two packages build this guest. They share the folder, so that its dependencies are built once.
export CARGO_TARGET_DIR="$HOME/.cache/hostler/guests/tests-tcp-guest/target"
mkdir -p "$CARGO_TARGET_DIR"
exec 9>"$CARGO_TARGET_DIR/copy.lock"
flock 9
cargo build --quiet --release --locked --target wasm32-wasip2
cp "$CARGO_TARGET_DIR/wasm32-wasip2/release/sockets.wasm" "$out"
