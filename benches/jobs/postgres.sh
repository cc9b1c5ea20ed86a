# Sourced by the benches of the job service, which need a PostgreSQL server of their own. It is Debian's package `postgresql`.
# shellcheck shell=bash

# A commit is on disk before it is answered. Tables fit into the server's memory, and checkpoints come by time, not by the amount that
# is written. All else is as PostgreSQL comes. POSTGRES_SETTINGS has further ones, such as "-c work_mem=16MB".
postgres_settings=(-c fsync=on -c synchronous_commit=on -c full_page_writes=on -c shared_buffers="${SHARED_BUFFERS:-1GB}"
  -c max_wal_size="${MAX_WAL_SIZE:-8GB}" -c max_connections=200)

# PostgreSQL refuses to run as root.
as_postgres() {
  if [ "$(id -u)" = 0 ]; then setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else "$@"; fi
}

# Starts a new server, waits until it answers, and sets `postgres_server`, its process, `postgres_port` and `postgres_data`, its folder.
# `end_postgres` ends it.
start_postgres() {
  local programs
  programs=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
  [ -x "$programs/postgres" ] || { echo "PostgreSQL is not installed: install Debian's postgresql" >&2 && return 1; }
  postgres_programs=$programs
  postgres_data=$(mktemp -d)
  [ "$(id -u)" != 0 ] || chown 65534:65534 "$postgres_data"
  (cd / && as_postgres "$programs/initdb" -A trust -U postgres -E UTF8 --locale=C -D "$postgres_data/data") >"$postgres_data/init" 2>&1 ||
    { tail "$postgres_data/init" >&2 && return 1; }
  postgres_port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
  # setpriv and the shell are replaced by the server, so its process is the one that started here.
  (
    cd /
    program=("$programs/postgres" -D "$postgres_data/data" -p "$postgres_port" -c listen_addresses=127.0.0.1
      -c unix_socket_directories= "${postgres_settings[@]}")
    # shellcheck disable=SC2206
    program+=(${POSTGRES_SETTINGS:-})
    [ "$(id -u)" != 0 ] || program=(setpriv --reuid 65534 --regid 65534 --clear-groups "${program[@]}")
    exec "${program[@]}"
  ) >"$postgres_data/output" 2>&1 &
  postgres_server=$!
  until psql_of postgres -c "SELECT 1" >/dev/null 2>&1; do
    kill -0 "$postgres_server" || { tail "$postgres_data/output" >&2 && return 1; }
    sleep 0.1
  done
}

# psql_of DATABASE ARGUMENT...: prints rows without decoration, or fails.
psql_of() { "$postgres_programs/psql" -XqAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$postgres_port" -U postgres -d "$@"; }

# Prints the version and the settings that matter.
describe_postgres() {
  psql_of postgres -c "SELECT 'PostgreSQL ' || current_setting('server_version') || ', '
      || string_agg(name || ' ' || current_setting(name), ', ' ORDER BY name)
    FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size',
      'checkpoint_timeout')"
}

# Ends the server, if it was started, and removes its folder.
end_postgres() {
  if [ -n "${postgres_server:-}" ]; then
    kill -INT "$postgres_server" 2>/dev/null || true
    wait "$postgres_server" 2>/dev/null || true
    postgres_server=
  fi
  rm -rf "${postgres_data:-}"
  postgres_data=
}
