#!/bin/sh
# Builds the batch guest: build.sh OUT.wasm
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --quiet --release --locked --target wasm32-wasip2 --package batch
cp "$CARGO_TARGET_DIR/wasm32-wasip2/release/batch.wasm" "$out"
