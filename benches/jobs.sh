#!/usr/bin/env bash
# Measures the job service over HTTP, with PostgreSQL beside it on the same cores, and fails if it misses a bar: jobs.sh [--quick] [NAME...]
#   NAME      batched, single, million, keys, pinned, rate or bloat, which takes an hour; all without any
#   --quick   each for seconds, with no bars
# Each runs on a new database of one server, whose settings benches/jobs/postgres.sh has. Variables of the load (ITEMS, BATCH,
# CONNECTIONS, DURATION in seconds, RATE, KEYS, BY) are described in crates/jobs/examples/jobs_load. HOSTLER_BIN and JOBS_LOAD name
# other builds.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh
# shellcheck source=jobs/postgres.sh
source benches/jobs/postgres.sh
# shellcheck source=jobs/service.sh
source benches/jobs/service.sh

if [ "${1:-}" = --quick ]; then export QUICK=1 && shift; fi
names=("$@")
[ $# -gt 0 ] || names=(batched single million keys pinned rate bloat)
build_jobs
trap 'end_service; end_postgres' EXIT
start_postgres
echo "$("$hostler" --version), $(describe_postgres), $(nproc) cores"

missed=()
for name in "${names[@]}"; do
  # Complete trees go soon where the size of the database matters.
  retention=7d
  [ "$name" != bloat ] || retention=60s
  start_service "$name" "$retention"
  "$load" "$name" || missed+=("$name")
  end_service
  psql_of postgres -c "DROP DATABASE $name WITH (FORCE)" -c CHECKPOINT
done
[ ${#missed[@]} = 0 ] || { echo "missed: ${missed[*]}" >&2 && exit 1; }
