#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler that has its hooks inside with the `cargo` on the path; inside.wasm in this folder if
# no other is named. handler.wasm and hooks.wasm, which are two components apart, go beside it.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/inside.wasm}")
cd "$(dirname "$0")"
if [ ! -d "$(rustc --print target-libdir --target wasm32-wasip2)" ]; then
    rustup target add wasm32-wasip2 >&2
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --quiet --release --locked --target wasm32-wasip2 --workspace
built="$CARGO_TARGET_DIR/wasm32-wasip2/release"
cp "$built/inside.wasm" "$out"
cp "$built/handler.wasm" "$built/hooks.wasm" "$(dirname "$out")"
