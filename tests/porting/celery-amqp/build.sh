#!/usr/bin/env bash
# build.sh OUT.wasm: builds the page's code as the template for Python is built.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
componentize-py -q -d ../../../wit -w consumer componentize app -p . -p ../../../sdk/python -o "$out"
