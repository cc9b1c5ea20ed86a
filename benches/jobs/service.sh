# Sourced by the benches of the job service, after postgres.sh: builds hostler and the load, and starts `hostler jobs serve`.
# shellcheck shell=bash disable=SC2154

# Builds both, and sets `hostler` and `load`. HOSTLER_BIN and JOBS_LOAD name other builds.
build_jobs() {
  if [ -z "${HOSTLER_BIN:-}" ]; then
    build_all
  elif [ -z "${JOBS_LOAD:-}" ]; then
    cargo build --release --workspace --locked --example jobs_load
  fi
  hostler=$(realpath "${HOSTLER_BIN:-$release/hostler}")
  load=$(realpath "${JOBS_LOAD:-$release/examples/jobs_load}")
}

# start_service DATABASE RETENTION: creates the database, starts the service on it, waits until it listens, and sets `service`, its
# process, and the variables of the load. `end_service` ends it.
start_service() {
  local port log=$postgres_data/hostler-$1.log
  psql_of postgres -c "CREATE DATABASE $1"
  port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
  cat >"$postgres_data/$1.toml" <<TOML
[host]
health_file = "$postgres_data/$1.health.json"
[jobs]
database = "postgres://postgres@127.0.0.1:$postgres_port/$1"
listen = "127.0.0.1:$port"
retention = "$2"
TOML
  # Nothing of the caller's environment changes the config or the log.
  env -i PATH="$PATH" HOME="$postgres_data" HOSTLER_CONFIG="$postgres_data/$1.toml" "$hostler" jobs serve >"$log" 2>&1 &
  service=$!
  until grep -qs "the job service listens" "$log"; do
    kill -0 "$service" || { tail "$log" >&2 && return 1; }
    sleep 0.1
  done
  export JOBS=127.0.0.1:$port DATABASE=postgres://postgres@127.0.0.1:$postgres_port/$1 HOSTLER_PID=$service POSTGRES_PID=$postgres_server
}

# Ends the service, if it was started. What it has logged as an error or a warning is printed.
end_service() {
  [ -n "${service:-}" ] || return 0
  kill -TERM "$service" 2>/dev/null || true
  wait "$service" 2>/dev/null || true
  service=
  grep -hE 'WARN|ERROR|"level":"(WARN|ERROR)"' "$postgres_data"/hostler-*.log | tail -n 5 >&2 || true
}
