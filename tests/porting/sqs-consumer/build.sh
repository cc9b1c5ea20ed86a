#!/usr/bin/env bash
# build.sh OUT.wasm: builds the page's code as the template for JavaScript is built.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"

# Imports must lie below the working directory.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cp ../../../sdk/js/hostler.js ../../../templates/js/component.js "$work"
# The test's server in place of the page's.
sed 's|https://mail\.example\.com|http://127.80.25.1:8025|' index.js >"$work/index.js"
wit=$(realpath ../../../wit)
cd "$work"
componentize-js component.js --wit "$wit" --world-name consumer --disable fetch-event --out "$out"
