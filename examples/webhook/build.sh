#!/usr/bin/env bash
# build.sh [OUT.wasm]: builds the handler with the `componentize-js` on the path; webhook.wasm in this folder if no other is named.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/webhook.wasm}")
cd "$(dirname "$0")"
wit=$(mktemp -d)
trap 'rm -r "$wit"' EXIT
cp -r wit/. ../../wit/consumer.wit "$wit"
# Modules must lie below the working directory, and hostler.js is elsewhere.
cd -P ../..
componentize-js examples/webhook/component.js --wit "$wit" --world-name webhook --disable fetch-event --out "$out"
