#!/usr/bin/env bash
# build.sh OUT.wasm: builds the page's code as the template for Go is built.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"

# The SDK is a folder of the project.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir "$work/hostler"
cp ../../../sdk/go/hostler.go "$work/hostler"
cp main.go "$work"
sed 's/{{name}}/statements/' ../../../templates/go/go.mod.template >"$work/go.mod"
cd "$work"
GOOS=wasip1 GOARCH=wasm go build -ldflags='-s -w' -o "$out" .
