#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler with the `cargo` on the path; payroll.wasm in this folder if no other is named.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/payroll.wasm}")
cd "$(dirname "$0")"
if [ ! -d "$(rustc --print target-libdir --target wasm32-wasip2)" ]; then
    rustup target add wasm32-wasip2 >&2
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --quiet --release --locked --target wasm32-wasip2
cp "$CARGO_TARGET_DIR/wasm32-wasip2/release/payroll.wasm" "$out"
