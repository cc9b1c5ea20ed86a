#!/usr/bin/env bash
# Compares the job service with other job queues on PostgreSQL: the same items, whose job does nothing, in batches of the same size,
# with the same concurrency, on a new server for each measurement: peers-run.sh [--quick] [NAME...]
#   NAME      hostler, graphile-worker, pg-boss, procrastinate, pgmq or awa; all without any
#   --quick   1,000 items each
# Each adds all items by CONNECTIONS (10) calls at a time, each of a batch (BATCHES: 1, 10 and 100), and then processes them. Prints a
# table, and where another is ahead of hostler. HOSTLER_BIN and JOBS_LOAD name other builds.
# hostler goes through HTTP and keeps the results; pgmq keeps no result, no failures and no attempts. procrastinate takes and ends jobs
# one by one, whatever the batch.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=../../tests/static.sh
source tests/static.sh
# shellcheck source=postgres.sh
source benches/jobs/postgres.sh
# shellcheck source=service.sh
source benches/jobs/service.sh

quick=
if [ "${1:-}" = --quick ]; then quick=1 && shift; fi
names=("$@")
[ $# -gt 0 ] || names=(hostler graphile-worker pg-boss procrastinate pgmq awa)
read -ra batches <<<"${BATCHES:-1 10 100}"
build_jobs
peers=$(bash benches/jobs/peers.sh)
python=$peers/jobs-python/bin/python
export CONNECTIONS=${CONNECTIONS:-10}
results=$(mktemp)
trap 'end_service; end_postgres; rm -f "$results"' EXIT

# Starts a new server, and a contender on it. It gets its settings by variables: DATABASE, ITEMS, BATCH and CONNECTIONS.
contend() {
  local name=$1 command node=$peers/jobs-node
  start_postgres
  if [ "$name" = hostler ]; then
    start_service contend 7d
  else
    psql_of postgres -c "CREATE DATABASE contend"
    export DATABASE=postgres://postgres@127.0.0.1:$postgres_port/contend POSTGRES_PID=$postgres_server HOSTLER_PID=
  fi
  case $name in
    hostler) command=("$load" contend) ;;
    graphile-worker | pg-boss)
      command=(env NODE_PATH="$node/node_modules" "$node/node" "benches/jobs/peers/load-$name.cjs") ;;
    *) command=("$python" "benches/jobs/peers/load-$name.py") ;;
  esac
  python3 benches/jobs/measure.py "$results" "$name" "$BATCH" "$ITEMS" "${command[@]}"
  end_service
  end_postgres
}

for BATCH in "${batches[@]}"; do
  case $BATCH in
    1) ITEMS=5000 ;;
    10) ITEMS=20000 ;;
    *) ITEMS=50000 ;;
  esac
  [ -z "$quick" ] || ITEMS=1000
  export BATCH ITEMS
  for name in "${names[@]}"; do contend "$name"; done
done
start_postgres
echo "$("$hostler" --version), $(describe_postgres), $(nproc) cores, $CONNECTIONS at a time"
python3 benches/jobs/measure.py "$results"
