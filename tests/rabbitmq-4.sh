#!/usr/bin/env bash
# rabbitmq-4.sh COMMAND…: runs a command with RabbitMQ 4 in place of Debian stable's, in HOSTLER_TEST_RABBITMQ. It comes from Debian
# unstable, in a system of its own below the user's cache folder, which the first run makes. Needs root.
set -euo pipefail

root=${HOSTLER_TEST_RABBITMQ:-$HOME/.cache/hostler/rabbitmq-4}
if [ ! -e "$root/made" ]; then
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase sid "$root" >&2
  # No service is started.
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"
  # shellcheck disable=SC2016
  unshare -m bash -c 'mount -t proc proc "$0/proc" && chroot "$0" apt-get install -qq --no-install-recommends rabbitmq-server' "$root" >&2
  touch "$root/made"
fi
echo "RabbitMQ $(ls "$root/usr/lib/rabbitmq/lib")" >&2

# The tests' folders have the same paths in that system.
export HOSTLER_TEST_RABBITMQ=$root TMPDIR=/tmp
# shellcheck disable=SC2016
exec unshare -m bash -c 'mount --bind /tmp "$0/tmp" && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec "$@"' "$root" "$@"
