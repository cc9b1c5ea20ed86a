#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler with the `go` on the path; validator.wasm in this folder if no other is named.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/validator.wasm}")
cd "$(dirname "$0")"
GOOS=wasip1 GOARCH=wasm go build -buildvcs=false -trimpath -ldflags='-s -w' -o "$out" .
