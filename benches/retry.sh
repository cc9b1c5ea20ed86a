#!/usr/bin/env bash
# Measures the retry service on a NATS server of its own, and fails if it misses a target: retry.sh [--quick] [NAME...]
#   NAME      ingest, lateness, memory or adoption; all without any
#   --quick   a hundredth of the messages, with no targets
# Ten million messages take 20 GB in the folder for temporary files (TMPDIR). HOSTLER_BIN names another build.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh
# shellcheck source=nats.sh
source benches/nats.sh

if [ "${1:-}" = --quick ]; then export SCALE=100 && shift; fi
[ -n "${HOSTLER_BIN:-}" ] || build_all
HOSTLER_BIN=$(realpath "${HOSTLER_BIN:-$release/hostler}")
trap end_nats EXIT
start_nats
NATS_URL=$nats_url HOSTLER_BIN=$HOSTLER_BIN cargo bench --workspace --bench retry --locked -- "$@"
