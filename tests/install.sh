# For servers.sh and toolchains.sh, which source it: installs tools side by side into folders under $root, each once per set of pins.
# shellcheck shell=bash disable=SC2154

mkdir -p "$root"
# Whoever comes second finds it all installed.
exec 9>"$root/lock"
flock 9

apt() {
  local as_root=""
  [ "$(id -u)" = 0 ] || as_root=sudo
  $as_root apt-get update -qq >&2
  $as_root apt-get install -y -qq --no-install-recommends "$@" >&2
}

# find_python MINOR: one of 3.MINOR or later. Debian keeps venv in a package of its own, and what is on the path may be
# a shim with no Python behind it.
find_python() {
  local candidate prefix
  prefix=$(pyenv prefix 3.13.0 2>/dev/null) || prefix=""
  for candidate in ${prefix:+"$prefix/bin/python3"} python3.13 python3.12 python3.11 python3.10 python3; do
    if "$candidate" -c "import sys, ensurepip, ssl, venv; sys.exit(sys.version_info < (3, $1))" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# venv PYTHON FOLDER PIN...
venv() {
  "$1" -m venv "$2"
  "$2/bin/pip" install --quiet --disable-pip-version-check "${@:3}"
}

# The next two are for `install`: they install into the folder that comes first, in a shell of their own.

python_package() {
  venv "$(find_python 10)" "$@"
}

# The tests run node in this folder: the machine's if it is new enough, or else the one that PyPI has.
node_package() {
  local folder=$1 node=$2 npm=npm
  mkdir -p "$folder"
  if node -e 'process.exit(Number(process.versions.node.split(".")[0] < 20))' && command -v npm; then
    ln -s "$(node -p process.execPath)" "$folder/node"
  else
    python_package "$folder/runtime" "$node" || not_to_be_had "Node 20 or later"
    npm=$folder/runtime/bin/npm
    ln -s "$("$folder/runtime/bin/node" -p process.execPath)" "$folder/node"
  fi
  # npm itself looks for node on the path.
  PATH=$folder/runtime/bin:$PATH "$npm" install --prefix "$folder" --no-audit --no-fund --ignore-scripts "${@:3}"
}

skipped=69
not_to_be_had() {
  echo "there is no $1 here, and none could be installed"
  exit "$skipped"
}

# install NAME HOW PIN...: nothing if this was done with the same pins; else in the background, with a log.
declare -A started
install() {
  local name=$1 how=$2 pins="${*:3}"
  [ "$(cat "$root/$name/pins" 2>/dev/null)" != "$pins" ] || return 0
  find_python 10 >/dev/null || { apt python3 python3-venv python3-pip && find_python 10 >/dev/null; } || {
    echo "what the tests need is installed by Python 3.10 or later, with venv" >&2
    exit 1
  }
  echo "installing $pins" >&2
  rm -rf "${root:?}/$name"
  (
    set -e
    "$how" "$root/$name" "${@:3}"
    echo "$pins" >"$root/$name/pins"
  ) >"$root/$name.log" 2>&1 9>&- &
  started[$name]=$!
}

# Waits for all that `install` started, and fails if one did.
finish() {
  local name code failed=0
  for name in "${!started[@]}"; do
    code=0
    wait "${started[$name]}" || code=$?
    [ "$code" != 0 ] || continue
    tail -n 20 "$root/$name.log" >&2
    printf '\n*** %s IS NOT INSTALLED: TESTS THAT NEED IT CANNOT RUN ***\n\n' "$name" >&2
    [ "$code" = "$skipped" ] || failed=1
  done
  return "$failed"
}
