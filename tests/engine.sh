#!/usr/bin/env bash
# `engine.sh COMMAND…` runs a command beside a container engine of its own, which DOCKER_HOST names; its images are kept under $HOME.
# Ends the engine after it. Exits with 77 where no engine can start, and says why.
set -euo pipefail

cannot() { echo "no container engine here: $*" >&2; exit 77; }

home="${HOSTLER_TEST_ENGINE:-$HOME/.cache/hostler/engine}"
[ "$(id -u)" = 0 ] || cannot "it needs root"
for tool in dockerd containerd runc; do
  command -v "$tool" >/dev/null || cannot "$tool is not installed (Debian: docker.io)"
done
mkdir -p "$home"
# One engine at a time has the images.
exec 9>"$home/lock"
flock --timeout 600 9 || cannot "another one holds $home/lock"

run="$(mktemp -d)"
# The client that came with the engine; another one may stand before it.
mkdir "$run/bin" && ln -s "$(dirname "$(command -v dockerd)" | sed 's/sbin$/bin/')/docker" "$run/bin/docker"
export PATH="$run/bin:$PATH"
export DOCKER_HOST="unix://$run/docker.sock"
dockerd --data-root "$home/data" --exec-root "$run/exec" --pidfile "$run/pid" --host "$DOCKER_HOST" --storage-driver overlay2 \
  --iptables=false --bridge=none >"$run/log" 2>&1 9>&- &
engine=$!
end() {
  kill "$engine" 2>/dev/null && wait "$engine" 2>/dev/null
  rm -rf "$run"
}
trap end EXIT
for _ in $(seq 300); do
  [ ! -S "$run/docker.sock" ] || ! docker version >/dev/null 2>&1 || break
  kill -0 "$engine" 2>/dev/null || cannot "it ended at once: $(tail -n 3 "$run/log")"
  sleep 0.1
done
docker version >/dev/null 2>&1 || cannot "it does not answer: $(tail -n 3 "$run/log")"
# What a run that was killed has left.
docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
"$@" 9>&-
