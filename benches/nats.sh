# Sourced by benches that need a NATS server of their own. tests/servers.sh installs it.
# shellcheck shell=bash

nats=${HOSTLER_TEST_SERVERS:-$HOME/.cache/hostler/servers}/nats-newest/bin/nats-server

# start_nats [FLAG…]: starts a server, waits until it listens, and sets `nats_url`. `end_nats` ends it. With -js it has JetStream, with a
# folder of its own.
start_nats() {
  local ports
  [ -x "$nats" ] || { echo "NATS is not installed: run tests/servers.sh" >&2 && return 1; }
  nats_data=$(mktemp -d)
  "$nats" -a 127.0.0.1 -p -1 --ports_file_dir "$nats_data" -sd "$nats_data/streams" "$@" >"$nats_data/output" 2>&1 &
  nats_server=$!
  ports=$nats_data/nats-server_$nats_server.ports
  until grep -qs '"nats"' "$ports"; do
    kill -0 "$nats_server" || { tail "$nats_data/output" >&2 && return 1; }
    sleep 0.1
  done
  nats_url=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["nats"][0])' "$ports")
}

# Ends the server, if it was started, and removes its folder.
end_nats() {
  if [ -n "${nats_server:-}" ]; then
    kill "$nats_server" 2>/dev/null || true
    wait "$nats_server" 2>/dev/null || true
  fi
  rm -rf "${nats_data:-}"
}
