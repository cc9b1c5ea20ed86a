#!/usr/bin/env bash
# Drains a day of job applications from RabbitMQ beside the server, in a fresh sandbox each: 1.5 million messages, 5 % of which fail.
# A failed message is requeued twice, then delayed twice, then dead-lettered. Two of a hundred succeed after the first requeue, two
# after the first delay, and one never. Prints the figures, and fails if the books do not balance or if it takes more than 6 minutes.
#   day.sh [--quick]    20,000 messages, with no limit of time
# MESSAGES sets their number, a multiple of 100; SLOTS the number that hostler processes at once. HOSTLER_BIN names another build.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh
# shellcheck source=rabbitmq.sh
source benches/rabbitmq.sh

limit=360
[ "${1:-}" != --quick ] || { messages=20000 && limit=; }
messages=${MESSAGES:-${messages:-1500000}}
build_all
hostler=${HOSTLER_BIN:-$release/hostler}
target=${CARGO_TARGET_DIR:-$PWD/target}/side-by-side
[ -d "$(rustc --print target-libdir --target wasm32-wasip2)" ] || rustup target add wasm32-wasip2
CARGO_TARGET_DIR=$target cargo build --quiet --release --locked --manifest-path benches/side-by-side/handlers/Cargo.toml \
  --package day --target wasm32-wasip2

trap 'kill "${host:-}" 2>/dev/null || true; end_rabbitmq' EXIT
start_rabbitmq
work=$rabbitmq_data/day
mkdir "$work"
"$hostler" compile --output "$work/day.cwasm" "$target/wasm32-wasip2/release/day.wasm"
read -r metrics _ < <(free_ports)
cat >"$work/hostler.toml" <<TOML
[host]
health_file = "$work/health.json"
[queue]
driver = "rabbitmq"
[queue.rabbitmq]
url = "$amqp"
[telemetry]
prometheus = "127.0.0.1:$metrics"
[consumers.applications]
channel = "applications"
handler = "$work/day.cwasm"
concurrency = ${SLOTS:-64}
retry = { requeues = 2, requeue_delay = "0s", delays = 2, delay = "5s" }
TOML
# Nothing of the caller's environment changes the config or the log.
alone=(env -i PATH="$PATH" HOME="$work" HOSTLER_CONFIG="$work/hostler.toml")
"${alone[@]}" "$hostler" provision >"$work/provision"

seconds() { date +%s.%N; }
rate() { python3 -c "import sys; n, a, b = map(float, sys.argv[1:]); print(f'{n / (b - a):.0f} a second, {b - a:.1f} s')" "$@"; }
# Number of messages that were removed from the queue, by an ack or after a copy was dead-lettered. 0 while the host starts.
removed() {
  {
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    awk '/^hostler_messages_settled_total.*hostler_disposition="(ack|dead-letter)"/ { sum += $NF } END { print sum + 0 }' <&3
  } 3<>"/dev/tcp/127.0.0.1/$metrics" || echo 0
} 2>/dev/null
cpu() { python3 -c "import sys; print(sum(map(int, open(f'/proc/{sys.argv[1]}/stat').read().rsplit(')')[1].split()[11:13])) / 100)" "$1"; }

begin=$(seconds)
"$release/side-by-side" publish --url "$amqp" --queue applications --count "$messages"
echo "sent       $messages: $(rate "$messages" "$begin" "$(seconds)")"

server_before=$(cpu "$rabbitmq_server")
begin=$(seconds)
"${alone[@]}" "$hostler" run 2>"$work/log" &
host=$!
# If messages were lost, their number stands still, for longer than the delays of the policy. Then the books tell which.
last=0 still=0
while now=$(removed) && [ "$now" -lt "$messages" ] && [ "$still" -lt 120 ]; do
  kill -0 "$host" || { tail "$work/log" >&2 && exit 1; }
  if [ "$now" -gt "$last" ]; then last=$now still=0; else still=$((still + 1)); fi
  sleep 0.5
done
end=$(seconds)
echo "drained    $messages: $(rate "$messages" "$begin" "$end")"
python3 -c "import sys; n, host, before, after = map(float, sys.argv[1:])
print(f'CPU time   {host / n * 1e6:.0f} µs a message in hostler, {(after - before) / n * 1e6:.0f} µs in the server')" \
  "$messages" "$(cpu "$host")" "$server_before" "$(cpu "$rabbitmq_server")"
kill -TERM "$host"
wait "$host"

# The server counts the messages of quorum queues every 5 s.
for _ in 1 2 3 4 5 6; do
  sleep 5
  rabbitmqctl --silent list_queues name messages >"$work/queues"
  if python3 benches/day.py "$messages" "$work/log" "$work/queues" >"$work/books"; then break; fi
done
cat "$work/books"
python3 benches/day.py "$messages" "$work/log" "$work/queues" >/dev/null
[ -z "$limit" ] || python3 -c "import sys; sys.exit(float(sys.argv[2]) - float(sys.argv[1]) > $limit and 'more than $limit s')" "$begin" "$end"
