#!/usr/bin/env bash
# build.sh OUT.wasm: builds the conformance guest, by what tests/toolchains.sh installs.
set -euo pipefail
mkdir -p "$(dirname "$1")"
out=$(realpath "$1")
cd "$(dirname "$0")"
tools=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}

wit=$(mktemp -d)
trap 'rm -r "$wit"' EXIT
cp ../../../wit/consumer.wit world.wit "$wit"
"$tools/bin/componentize-py" -q -d "$wit" -w conformance componentize conformance -p . -p ../../../sdk/python -o "$out"
