#!/usr/bin/env bash
# Installs the packages that the tests need on a bare Debian or Ubuntu: C and C++ compilers, Python, namespaces, a container engine.
set -euo pipefail

missing=()
{ command -v cc && command -v c++; } >/dev/null || missing+=(build-essential)
command -v python3 >/dev/null || missing+=(python3)
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
command -v unshare >/dev/null || missing+=(util-linux)
command -v dockerd >/dev/null || missing+=(docker.io iptables)
command -v docker-init >/dev/null || missing+=(tini)
command -v debootstrap >/dev/null || missing+=(debootstrap)
if [ ${#missing[@]} -gt 0 ]; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root=sudo
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
