#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler with the `componentize-py` on the path; fan-out.wasm in this folder if no other is named.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/fan-out.wasm}")
cd "$(dirname "$0")"
componentize-py -q -d ../../wit -w consumer componentize fan_out -p . -p ../../sdk/python -o "$out"
