#!/usr/bin/env bash
# Cost of a fresh sandbox in JavaScript and Python: builds the handlers of `hostler new` with the programs that tests/toolchains.sh
# installs, and measures them with benches/sandbox.rs. Fails if the CPU time per message exceeds the limits below, in µs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh

# Limits that hold on every machine under any load. book/src/performance.md contains measured values.
javascript_limit=${JAVASCRIPT_LIMIT:-4000}
python_limit=${PYTHON_LIMIT:-10000}

tools=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# Imports must be in the working directory or below it.
mkdir -p "$work/js/wit" "$work/python/wit"
cp templates/js/{component,index}.js sdk/js/hostler.js "$work/js"
cp templates/python/app.py sdk/python/hostler.py "$work/python"
cp wit/consumer.wit "$work/js/wit"
cp wit/consumer.wit "$work/python/wit"
(cd "$work/js" && PATH=$tools/bin:$PATH componentize-js component.js -w wit -n consumer -d fetch-event -o "$work/js.wasm")
(cd "$work/python" && "$tools/bin/componentize-py" -q -d wit -w consumer componentize app -o "$work/python.wasm")

SANDBOXES="javascript=$work/js.wasm=$javascript_limit,python=$work/python.wasm=$python_limit" cargo bench --workspace --bench sandbox --locked
