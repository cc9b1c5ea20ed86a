#!/usr/bin/env bash
# The whole year end to end, or the flights of another file: fetch, send, consume with 4 slots, and compare with an independent sum. Prints the figures.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=../../tests/static.sh
source tests/static.sh
hostler=${HOSTLER:-$release/hostler}
[ -x "$hostler" ] || build_all
data=${1:-examples/flights/data/flights.jsonl}
[ -s "$data" ] || sh examples/flights/fetch.sh

# The quickstart's config, with all that it writes in a folder of this run's own.
work=$(mktemp -d)
trap 'kill "${host:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
export HOSTLER_CONFIG=config/quickstart.toml HOSTLER_QUEUE__EMBEDDED__PATH=$work/queue.db
export HOSTLER_HOST__HEALTH_FILE=$work/health.json
export HOSTLER_CONSUMERS__FLIGHTS__ALLOW__DIRS="[{host=\"$work/totals\",guest=\"/totals\",mode=\"rw\"}]"

seconds() { date +%s.%N; }
rate() { python3 -c "import sys; n, a, b = map(float, sys.argv[1:]); print(f'{n / (b - a):.0f} a second, {b - a:.1f} s')" "$@"; }
field() { "$hostler" queues --json flights | python3 -c "import json, sys; row, = json.load(sys.stdin); print(sum(row[key] for key in sys.argv[1:]))" "$@"; }

total=$(wc -l < "$data")
begin=$(seconds)
"$hostler" send flights --lines --file "$data"
sent=$(seconds)
"$hostler" run 2> "$work/log" &
host=$!
until [ "$(field visible delayed in_flight)" = 0 ]; do
    kill -0 "$host" || { tail "$work/log" >&2; exit 1; }
    sleep 0.2
done
done=$(seconds)
kill -TERM "$host"
wait "$host"
echo "sent      $total: $(rate "$total" "$begin" "$sent")"
echo "consumed  $total: $(rate "$total" "$sent" "$done")"
settled=$(grep -c 'settled' "$work/log")
dead=$(field dead_lettered)
cancelled=$(grep -c '"dep_time":null' "$data")
echo "settled   $settled, dead-lettered $dead, cancelled flights $cancelled"
python3 examples/flights/expected.py "$data" --compare "$work/totals" | tail -n 1
[ "$settled" = "$total" ] && [ "$dead" = "$cancelled" ]
