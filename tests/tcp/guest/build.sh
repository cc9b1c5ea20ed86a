#!/bin/sh
# Builds the guest: build.sh OUT.wasm
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")"
if [ ! -d "$(rustc --print target-libdir --target wasm32-wasip2)" ]; then
    rustup target add wasm32-wasip2 >&2
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --quiet --release --locked --target wasm32-wasip2
cp "$CARGO_TARGET_DIR/wasm32-wasip2/release/sockets.wasm" "$out"
