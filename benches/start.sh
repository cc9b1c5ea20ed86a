#!/usr/bin/env bash
# Measures the time of `hostler run` from exec to the first settled message, depending on what must be compiled: nothing (.cwasm),
# nothing because of the cache (.wasm, cached), or everything (.wasm). Also shows the composition of the binary. HOSTLER_BIN names an
# existing binary.
#   start.sh [ROUNDS]    number of rounds; the median counts
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-11}

# shellcheck source=../tests/static.sh
source "$(dirname "$0")/../tests/static.sh"
hostler=${HOSTLER_BIN:-$release/hostler}
[ -n "${HOSTLER_BIN:-}" ] || cargo build --release --locked
hostler=$(realpath "$hostler")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp examples/flights/flights.wasm "$work"
"$hostler" compile "$work/flights.wasm" --output "$work/flights.cwasm" >/dev/null

# once FILE: prints the milliseconds until a waiting message is settled. The message is dead-lettered.
once() {
  local config=$work/hostler.toml started pid line
  cat >"$config" <<END
[host]
health_file = "$work/health.json"
cache_dir = "$work/cache"
[queue]
driver = "embedded"
[queue.embedded]
path = "$work/hostler.db"
[consumers.flights]
channel = "flights"
handler = "$work/$1"
END
  "$hostler" send --config "$config" flights --body '{}' >/dev/null 2>&1
  started=${EPOCHREALTIME/./}
  exec 3< <(exec "$hostler" run --config "$config" 2>&1 >/dev/null)
  pid=$!
  while IFS= read -r line <&3; do
    case $line in *'"disposition"'*) break ;; esac
  done
  echo "$(((${EPOCHREALTIME/./} - started) / 100))" | sed 's/.$/.&/'
  kill -TERM "$pid"
  while IFS= read -r line <&3; do :; done
  exec 3<&-
}

median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }

printf '%-30s %10s\n' 'exec to first message' ms
printf '%-30s %10s\n' '.cwasm' "$(for _ in $(seq "$rounds"); do once flights.cwasm; done | median)"
printf '%-30s %10s\n' '.wasm, not cached' "$(for _ in $(seq "$rounds"); do rm -rf "$work/cache" && once flights.wasm; done | median)"
printf '%-30s %10s\n' '.wasm, cached' "$(for _ in $(seq "$rounds"); do once flights.wasm; done | median)"

# A function counts for the crate with which its name begins. Data without a name counts for no crate.
printf '\n%-30s %10.1f\n' 'binary, MiB' "$(stat -c %s "$hostler" | awk '{ print $1 / 1048576 }')"
nm --demangle --print-size --radix=d "$hostler" | awk '
  $3 ~ /^[tTrRdDwW]$/ {
    name = $4
    gsub(/^[<&*(]+/, "", name)
    if (name == "dyn" || name == "mut") name = $5
    crate = match(name, /^[A-Za-z0-9_]+::/) ? substr(name, 1, RLENGTH - 2) : "C, and without a crate"
    size[crate] += $2
  }
  END { for (crate in size) printf "%.2f\t%s\n", size[crate] / 1048576, crate }' | sort -rn >"$work/crates"
head -n 20 "$work/crates" | awk -F'\t' '{ printf "%-30s %10.2f\n", $2, $1 }'
