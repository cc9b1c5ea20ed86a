#!/usr/bin/env bash
# build.sh OUT.wasm: builds the batch guest, by what tests/toolchains.sh installs.
set -euo pipefail
mkdir -p "$(dirname "$1")"
out=$(realpath "$1")
cd "$(dirname "$0")"
tools=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}

# The build leaves a __pycache__ beside what it imports.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir "$work/wit"
cp ../../../../wit/consumer.wit world.wit "$work/wit"
cp ../../../../sdk/python/hostler.py batch.py "$work"
cd "$work"
"$tools/bin/componentize-py" -q -d wit -w guest componentize batch -o "$out"
