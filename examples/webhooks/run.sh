#!/usr/bin/env bash
# run.sh [--views N] [--down SECONDS] [--rate PER_SECOND] [--handler FILE]: sends page views to two webhooks, one of which is down at
# first, and the other takes few requests a second. Ends with the books. Writes backlog.svg into the current folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
views=600 down=60 rate=20 handler=$here/webhooks.wasm
while [ $# -gt 0 ]; do
  case $1 in
  --views) views=$2 ;;
  --down) down=$2 ;;
  --rate) rate=$2 ;;
  --handler) handler=$(realpath "$2") ;;
  *) echo "usage: run.sh [--views N] [--down SECONDS] [--rate PER_SECOND] [--handler FILE]" >&2 && exit 2 ;;
  esac
  shift 2
done
for program in hostler nats-server python3; do
  command -v "$program" >/dev/null || { echo "$program is not on the PATH" >&2 && exit 2; }
done
[ -e "$handler" ] || bash "$here/build.sh" "$handler"

work=$(mktemp -d)
started=()
# Ends all that was started, the last first.
finish() {
  for ((n = ${#started[@]} - 1; n >= 0; n--)); do
    kill "${started[n]}" 2>/dev/null || true
    wait "${started[n]}" || true
  done
  started=()
}
trap 'finish; rm -rf "$work"' EXIT

# start LOG COMMAND...
start() {
  local log=$1
  shift
  "$@" >"$work/$log" 2>&1 &
  started+=($!)
}

# await SECONDS WHAT COMMAND...: waits until the command succeeds.
await() {
  local patience=$1 what=$2 begin=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    for process in "${started[@]}"; do
      kill -0 "$process" 2>/dev/null || { echo "a program ended too early:" >&2 && tail -n 5 "$work"/*.log >&2 && exit 1; }
    done
    [ $((SECONDS - begin)) -lt "$patience" ] || { echo "no $what within $patience s" >&2 && tail -n 5 "$work"/*.log >&2 && exit 1; }
    sleep 0.1
  done
}

# The server, on a port that is free.
start nats.log nats-server -a 127.0.0.1 -p -1 --ports_file_dir "$work"
await 30 "NATS server" compgen -G "$work/nats-server_*.ports"
nats=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["nats"][0])' "$work"/nats-server_*.ports)

# The webhooks.
start endpoint.log python3 "$here/endpoint.py" "$work/port" "$work/requests" "$down" "$rate"
await 30 endpoint test -e "$work/port"
webhooks=http://127.0.0.1:$(cat "$work/port")

# Two consumers, and the retry service.
cp "$here/hostler.toml" "$here/retry.toml" "$work"
cd "$work"
export HOSTLER_TELEMETRY__LOG=json
consumer=(env HOSTLER_CONFIG="$work/hostler.toml" HOSTLER_QUEUE__NATS__URL="$nats" HOSTLER_CONSUMERS__WEBHOOKS__HANDLER="$handler"
  HOSTLER_CONSUMERS__WEBHOOKS__ALLOW__HTTP="[$webhooks]" HOSTLER_CONSUMERS__WEBHOOKS__ALLOW__ENV__WEBHOOKS="$webhooks")
for name in consumer-1 consumer-2; do
  start $name.log "${consumer[@]}" HOSTLER_HOST__HEALTH_FILE="$work/$name.json" hostler run
done
start retry.log env HOSTLER_RETRY__NATS="$nats" HOSTLER_HOST__HEALTH_FILE="$work/retry.json" hostler retry --config retry.toml
for name in consumer-1 consumer-2; do
  await 120 consumer grep -q '"message":"consuming"' $name.log
done
await 30 "retry service" grep -q 'the retry service takes messages' retry.log

# Each view goes to both webhooks.
for ((n = 1; n <= views; n++)); do
  echo "{\"view\": $n, \"page\": \"/articles/$((n % 7))\"}"
done >views.jsonl
for webhook in counter archive; do
  "${consumer[@]}" hostler send --subject webhooks.$webhook --request --timeout 10s --fallback retry --lines --file views.jsonl
done

all_delivered() {
  [ "$(awk '$4 == 204 { print $2, $3 }' requests | sort -u | wc -l)" -eq $((2 * views)) ]
}
await $((down + 60 + 20 * views / rate)) "delivery of every view" all_delivered

# Nothing is left in the store.
retry=${started[-1]}
unset 'started[-1]'
kill "$retry" && wait "$retry"
echo
HOSTLER_RETRY__NATS=$nats hostler queues --config retry.toml
echo
cd "$OLDPWD"
python3 "$here/books.py" "$work/requests" "$views" backlog.svg
