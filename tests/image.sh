#!/usr/bin/env bash
# Makes the images hostler:test and hostler:test-debian on a running engine (see engine.sh): the last stage of the Dockerfile with the
# binary HOSTLER_BIN, or, where that is not static or not named, with the one that it builds.
# `image.sh --from-scratch` builds all of the Dockerfile instead, without a network, and records that it did.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

have() { [ -n "$(docker image ls --quiet "$1")" ]; }

# No image can be pulled everywhere, so the base images are made here.
debian=hostler-test-debian:bookworm-2
if ! have "$debian"; then
  root="$(mktemp -d)"
  debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev bookworm "$root" >&2
  tar --directory "$root" --exclude='./var/cache/apt/archives/*.deb' --create . | docker import - "$debian" >&2
  rm -rf "$root"
fi

from_scratch() {
  # Debian, the Rust toolchain and the crates at hand.
  local context sysroot others=() other
  cargo fetch --locked >&2
  context="$(mktemp -d)"
  sysroot="$(rustc --print sysroot)"
  for other in "$sysroot"/lib/rustlib/*/; do
    case "$(basename "$other")" in
      "$CARGO_BUILD_TARGET" | etc) ;;
      *) others+=(--exclude="./lib/rustlib/$(basename "$other")") ;;
    esac
  done
  tar --directory "$sysroot" --exclude=./share --exclude=./libexec "${others[@]}" --create --file "$context/toolchain.tar" .
  # The machine's own config may say where crates come from. Not where the Dockerfile mounts its cache.
  (cd "${CARGO_HOME:-$HOME/.cargo}" && tar --create --file "$context/crates.tar" registry/index registry/cache $(ls config.toml 2>/dev/null || true))
  cat >"$context/Dockerfile" <<-END
	FROM $debian
	ENV CARGO_HOME=/opt/cargo CARGO_NET_OFFLINE=true PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin
	ADD toolchain.tar /usr/local/rust/
	ADD crates.tar /opt/cargo/
	END
  DOCKER_BUILDKIT=0 docker build --network none --tag hostler-test-builder "$context" >&2
  rm -rf "$context"
  DOCKER_BUILDKIT=1 docker build --progress plain --network none --build-arg BUILDER=hostler-test-builder --tag hostler:test . >&2
  bash tests/image-key.sh >tests/image.built
  docker image rm hostler-test-builder >&2
}

# The last stage alone, over a stage that holds what the first would have made.
last_stage() {
  local binary="${HOSTLER_BIN:-}" context
  if [ -z "$binary" ] || ! file_is_static "$binary"; then
    cargo build --release --locked --bin hostler >&2
    binary=${CARGO_TARGET_DIR:-target}/$CARGO_BUILD_TARGET/release/hostler
  fi
  context="$(mktemp -d)"
  mkdir -p "$context"/image/etc/{hostler,ssl/certs} "$context"/image/{tmp,var/lib/hostler}
  strip --strip-all -o "$context/image/hostler" "$binary"
  cp /etc/ssl/certs/ca-certificates.crt "$context/image/etc/ssl/certs/"
  echo 'hosts: files dns' >"$context/image/etc/nsswitch.conf"
  chmod 1777 "$context/image/tmp" "$context/image/var/lib/hostler"
  {
    printf 'ARG BASE=scratch\nFROM scratch AS build\nCOPY image /image\n'
    sed -n '/^FROM ${BASE}/,$p' Dockerfile
  } >"$context/Dockerfile"
  for base in "hostler:test scratch" "hostler:test-debian $debian"; do
    DOCKER_BUILDKIT=0 docker build --network none --build-arg BASE="${base#* }" --tag "${base% *}" "$context" >&2
  done
  rm -rf "$context"
  docker image prune --force >/dev/null
}

# Whether it asks for no dynamic linker.
file_is_static() { [ "$(readelf --program-headers "$1" | grep -c INTERP)" = 0 ]; }

if [ "${1:-}" = --from-scratch ]; then from_scratch; else last_stage; fi
