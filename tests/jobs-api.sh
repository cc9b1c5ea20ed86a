#!/usr/bin/env bash
# Tests the API of the job service against its own OpenAPI document, by schemathesis: no undocumented answer, no fault of the
# server, nothing legal refused, nothing illegal accepted.
#
#   bash tests/jobs-api.sh [EXAMPLES [PHASES [SECONDS]]]
#
# HOSTLER_BIN names the server's binary, by default that of the release build, which it does not make. SCHEMATHESIS names another
# schemathesis than the one that it installs beside the test servers. Fails if it takes longer than SECONDS, half an hour by default.
# Needs PostgreSQL's programs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

binary=$(realpath "${HOSTLER_BIN:-$release/hostler}")
examples=${1:-25}
phases=${2:-examples,coverage,fuzzing,stateful}
seconds=${3:-1800}
schemathesis=${SCHEMATHESIS:-}
if [ -z "$schemathesis" ]; then
    root=${HOSTLER_TEST_SERVERS:-$HOME/.cache/hostler/servers}
    # In a shell of its own, whose end gives up the lock.
    (
        # shellcheck source=install.sh
        source tests/install.sh
        install schemathesis python_package schemathesis==4.32.5
        finish
    )
    schemathesis=$root/schemathesis/bin/schemathesis
fi
programs=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
folder=$(mktemp -d)
token=an-operators-token-for-tests

# PostgreSQL refuses to run as root.
as_owner() {
    if [ "$(id -u)" = 0 ]; then setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else "$@"; fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

server=
finish() {
    if [ -n "$server" ]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" || true
    fi
    as_owner "$programs/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap finish EXIT

cd "$folder"
if [ "$(id -u)" = 0 ]; then chown 65534:65534 "$folder"; fi
database=$(free_port)
as_owner "$programs/initdb" -D "$folder/data" -A trust -U postgres --no-sync >"$folder/initdb.log"
as_owner "$programs/pg_ctl" -D "$folder/data" -l "$folder/data/log" -w -t 60 \
    -o "-p $database -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off" start >/dev/null

listen=127.0.0.1:$(free_port)
HOSTLER_JOBS__DATABASE="postgres://postgres@127.0.0.1:$database/postgres" \
    HOSTLER_JOBS__LISTEN="$listen" HOSTLER_JOBS__TOKENS__OPERATOR="$token" \
    HOSTLER_HOST__HEALTH_FILE="$folder/health" \
    env -u HOSTLER_BIN "$binary" jobs serve >"$folder/log" 2>&1 &
server=$!

cat >"$folder/schemathesis.toml" <<'SETTINGS'
# PostgreSQL stores no NUL character; the tests of the crate see it refused.
[generation]
allow-x00 = false
# Items of an arbitrary worker cannot be reached by chance. That a deleted job is gone is tested by the crate.
[checks]
ensure_resource_availability.enabled = false
# 408: a busy machine may let the client pause within a body. 410: the assignments of generated ids have ended. 422: rules between fields, which a schema cannot say.
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "408", "409", "410", "422", "429"]
# 413: some of what breaks a limit of length is refused for its size in all.
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "406", "408", "409", "413", "415", "422", "428", "429"]
SETTINGS

cat >"$folder/hooks.py" <<'HOOKS'
"""Shortens long polls, which would take a minute each."""
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body if isinstance(case.body, dict) else {}
    wait = body.get("wait_seconds")
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait <= 60:
        body["wait_seconds"] = min(wait, 0.05)
HOOKS

# Bodies and examples can be long.
short() { stdbuf -oL cut -b 1-500; }

status=0
SCHEMATHESIS_HOOKS=hooks PYTHONPATH="$folder" timeout --kill-after=30 "$seconds" \
    "$schemathesis" --config-file "$folder/schemathesis.toml" run "http://$listen/openapi.json" \
    --wait-for-schema 60 --header "Authorization: Bearer $token" --max-examples "$examples" --phases "$phases" --seed 1 \
    --workers 1 --request-timeout 70 --continue-on-failure --suppress-health-check all 2>&1 | short || status=$?
if [ "$status" = 124 ]; then echo "schemathesis did not end within $seconds s" >&2; fi
if ! kill -0 "$server" 2>/dev/null || [ "$status" != 0 ]; then
    tail -n 50 "$folder/log" | short >&2
    exit 1
fi
