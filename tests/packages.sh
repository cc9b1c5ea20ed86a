#!/usr/bin/env bash
# Installs the packages that the tests need on a bare Debian or Ubuntu: C and C++ compilers, Python, namespaces, a container engine,
# PostgreSQL with pgbouncer, and Redis, which the tests start themselves.
set -euo pipefail

missing=()
{ command -v cc && command -v c++; } >/dev/null || missing+=(build-essential)
command -v python3 >/dev/null || missing+=(python3)
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
command -v unshare >/dev/null || missing+=(util-linux)
command -v dockerd >/dev/null || missing+=(docker.io iptables)
command -v docker-init >/dev/null || missing+=(tini)
command -v debootstrap >/dev/null || missing+=(debootstrap)
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql)
[ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
command -v redis-server >/dev/null || missing+=(redis-server)
if [ ${#missing[@]} -gt 0 ]; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root=sudo
  # Lets no package start its service, unless somebody has a rule for that already.
  rule=/usr/sbin/policy-rc.d
  if [ ! -e $rule ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee $rule >/dev/null
    $as_root chmod 755 $rule
    trap '$as_root rm $rule' EXIT
  fi
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
