#!/usr/bin/env bash
# What a fresh sandbox costs in JavaScript and Python: builds the handlers that `hostler new` makes, with what tests/toolchains.sh
# has installed, and measures them with benches/sandbox.rs. Fails above these CPU times of a message, in µs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh

# What no machine should need, however busy it is: book/src/performance.md has the figures.
javascript_limit=${JAVASCRIPT_LIMIT:-4000}
python_limit=${PYTHON_LIMIT:-10000}

tools=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# Imports must lie below the working directory.
mkdir -p "$work/js/wit" "$work/python/wit"
cp templates/js/{component,index}.js sdk/js/hostler.js "$work/js"
cp templates/python/app.py sdk/python/hostler.py "$work/python"
cp wit/consumer.wit "$work/js/wit"
cp wit/consumer.wit "$work/python/wit"
(cd "$work/js" && PATH=$tools/bin:$PATH componentize-js component.js -w wit -n consumer -d fetch-event -o "$work/js.wasm")
(cd "$work/python" && "$tools/bin/componentize-py" -q -d wit -w consumer componentize app -o "$work/python.wasm")

SANDBOXES="javascript=$work/js.wasm=$javascript_limit,python=$work/python.wasm=$python_limit" cargo bench --workspace --bench sandbox --locked
