#!/usr/bin/env bash
# Soaks a host over each driver: soak.sh [MINUTES], an hour by default.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
cargo bench --workspace --bench soak --locked -- --minutes "${1:-60}" --out "$report"
