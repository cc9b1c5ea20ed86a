#!/usr/bin/env bash
# build.sh OUT.wasm: the conformance guest in C.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
clang --target=wasm32-wasi -std=gnu11 -O2 -Wall -Wextra -Werror -s -Wl,--stack-first -Wl,-z,stack-size=131072 -I ../../../sdk/c -o "$out" guest.c
