#!/usr/bin/env bash
# run.sh [--employees N] [--checks N] [--handler FILE]: pays employees by a tree of three jobs, over two servers, two hosts and a worker.
# Kills a host and a server on the way. Ends with the books.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
employees=150 checks=4 handler=$here/payroll.wasm
while [ $# -gt 0 ]; do
  case $1 in
  --employees) employees=$2 ;;
  --checks) checks=$2 ;;
  --handler) handler=$(realpath "$2") ;;
  *) echo "usage: run.sh [--employees N] [--checks N] [--handler FILE]" >&2 && exit 2 ;;
  esac
  shift 2
done
[ "$employees" -ge 30 ] && [ "$checks" -ge 2 ] || { echo "there are at least 30 employees, with 2 checks each" >&2 && exit 2; }
# The programs of PostgreSQL: those on the PATH, or the newest version of a Debian.
PATH=$PATH:$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1 || true)
for program in hostler initdb postgres python3; do
  command -v "$program" >/dev/null || { echo "$program is not on the PATH" >&2 && exit 2; }
done
[ -e "$handler" ] || bash "$here/build.sh" "$handler"

work=$(mktemp -d)
declare -A process
names=()
# Ends all that runs, the last first.
finish() {
  names+=(producer)
  for ((n = ${#names[@]} - 1; n >= 0; n--)); do
    local id=${process[${names[n]}]:-}
    [ -n "$id" ] || continue
    kill "$id" 2>/dev/null || true
    wait "$id" 2>/dev/null || true
  done
}
trap 'finish; rm -rf "$work"' EXIT

# start NAME COMMAND...: its output goes to NAME.log.
start() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 &
  process[$name]=$!
  names+=("$name")
}

# crash NAME: as by the kernel, which gives no time to put anything in order.
crash() {
  kill -9 "${process[$1]}"
  wait "${process[$1]}" 2>/dev/null || true
  unset "process[$1]"
}

fail() {
  echo "$1" >&2
  tail -n 5 "$work"/*.log >&2
  exit 1
}

# await SECONDS WHAT COMMAND...: waits until the command succeeds.
await() {
  local patience=$1 what=$2 begin=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    for name in "${!process[@]}"; do
      kill -0 "${process[$name]}" 2>/dev/null || { [ "$name" = producer ] && [ -s root ]; } || fail "$name ended too early"
    done
    [ $((SECONDS - begin)) -lt "$patience" ] || fail "no $what within $patience s"
    sleep 0.1
  done
}

# PostgreSQL, which does not run as root.
user=()
chmod 711 "$work"
mkdir -m 700 "$work/postgres"
if [ "$(id -u)" -eq 0 ]; then
  user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  chown 65534:65534 "$work/postgres"
fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cd "$work/postgres"
"${user[@]}" initdb -A trust -U payroll -E UTF8 --locale=C -D data >"$work/initdb.log" 2>&1 || fail "initdb failed"
start postgres "${user[@]}" postgres -D data -c listen_addresses=127.0.0.1 -c "port=$port" -c unix_socket_directories=
await 60 PostgreSQL pg_isready -q -h 127.0.0.1 -p "$port" -U payroll -d postgres
cd "$work"
cp "$here/service.toml" "$here/hostler.toml" .
export HOSTLER_TELEMETRY__LOG=json

# The bank. Employee 3 has an account that it refuses.
secret=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
start bank env CALLBACK_SECRET="$secret" python3 "$here/bank.py" "$work" account-00003 0.1
await 30 bank test -e bank
bank=$(cat bank)

# server NAME ADDRESS: a server of the job service.
server() {
  start "$1" env HOSTLER_CONFIG="$work/service.toml" HOSTLER_JOBS__DATABASE="postgres://payroll@127.0.0.1:$port/postgres" \
    HOSTLER_JOBS__LISTEN="$2" HOSTLER_JOBS__CALLBACK_SECRET="$secret" HOSTLER_HOST__HEALTH_FILE="$work/${1%-again}.json" hostler jobs serve
  await 60 "job service" grep -q '"message":"the job service listens"' "$1.log"
}

# host NAME URL: a host with both consumers, and the server that it asks.
host() {
  start "$1" env HOSTLER_CONFIG="$work/hostler.toml" HOSTLER_JOBS__URL="$2" HOSTLER_HOST__HEALTH_FILE="$work/${1%-again}.json" \
    HOSTLER_CONSUMERS__PAYROLLS__HANDLER="$handler" HOSTLER_CONSUMERS__CHECKS__HANDLER="$handler" \
    HOSTLER_CONSUMERS__CHECKS__ALLOW__HTTP="[$bank]" HOSTLER_CONSUMERS__CHECKS__ALLOW__ENV__BANK="$bank" hostler run
}

servers=()
for name in server-1 server-2; do
  server $name 127.0.0.1:0
  servers+=("http://$(sed -En 's/.*"address":"([^"]+)".*/\1/p' $name.log | head -n 1)")
done
host host-1 "${servers[0]}"
host host-2 "${servers[1]}"
for name in host-1 host-2; do
  await 120 host grep -q '"message":"consuming"' $name.log
done
start worker python3 "$here/worker.py" "$work/notices" "${servers[@]}"

# The employees are added while the first checks are sent, a host dies, and a server.
python3 "$here/produce.py" "$employees" "$checks" "$bank/paid" "${servers[@]}" >root &
process[producer]=$!
# paid PART: whether so many checks of a hundred are paid.
paid() {
  [ "$(grep -c '"paid"' ledger)" -ge $((employees * checks * $1 / 100)) ]
}
await 180 "checks" paid 15
crash host-2
echo "host 2 is killed, with $(grep -c '"paid"' ledger) checks paid"
host host-2-again "${servers[1]}"
await 180 "further checks" paid 40
crash server-1
echo "server 1 is killed, with $(grep -c '"paid"' ledger) checks paid"
server server-1-again "${servers[0]#http://}"
wait "${process[producer]}" || fail "the producer failed"
unset "process[producer]"
await 300 callback test -s callbacks
echo
HOSTLER_JOBS__URL=${servers[1]} hostler jobs show "$(cat root)" --config service.toml
echo
python3 "$here/books.py" "$work" "$(cat root)" "$employees" "$checks" "${servers[@]}"
