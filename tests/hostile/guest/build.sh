#!/bin/sh
# Builds the guest: build.sh OUT.wasm
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")"
sysroot=$(rustc --print sysroot)
[ -d "$sysroot/lib/rustlib/wasm32-wasip2" ] || rustup target add wasm32-wasip2
cargo build --quiet --release --locked --target wasm32-wasip2
cp "${CARGO_TARGET_DIR:-target}/wasm32-wasip2/release/hostile.wasm" "$out"
