#!/usr/bin/env bash
# build.sh OUT.wasm: the conformance guest in Go.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
GOOS=wasip1 GOARCH=wasm go build -buildvcs=false -trimpath -ldflags='-s -w' -o "$out" .
