#!/usr/bin/env bash
# build.sh OUT.wasm: builds the batch guest, by what tests/toolchains.sh installs.
set -euo pipefail
mkdir -p "$(dirname "$1")"
out=$(realpath "$1")
cd "$(dirname "$0")"
tools=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}

# Imports must lie below the working directory.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir "$work/wit"
cp ../../../../wit/consumer.wit world.wit "$work/wit"
cp ../../../../sdk/js/hostler.js component.js batch.js "$work"
cd "$work"
PATH=$tools/bin:$PATH componentize-js component.js -w wit -n guest -d fetch-event -o "$out"
