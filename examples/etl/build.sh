#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler with clang and wasi-libc; etl.wasm in this folder if no other is named.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/etl.wasm}")
cd "$(dirname "$0")"
clang --target=wasm32-wasi -std=gnu11 -O2 -Wall -Wextra -Werror -s -Wl,--stack-first -Wl,-z,stack-size=131072 -I ../../sdk/c -o "$out" etl.c
