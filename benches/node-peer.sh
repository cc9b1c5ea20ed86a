# Sourced by the scripts that install peers, after tests/install.sh.
# shellcheck shell=bash

# node_peer FOLDER NODE PACKAGE...: installs packages of npm with a Node of their own, always of this version, so that results of
# different machines refer to the same code.
node_peer() {
  local folder=$1
  python_package "$folder/runtime" "$2"
  ln -s "$("$folder/runtime/bin/node" -p process.execPath)" "$folder/node"
  PATH=$folder/runtime/bin:$PATH npm install --prefix "$folder" --no-audit --no-fund --ignore-scripts "${@:3}"
}
