#!/usr/bin/env bash
# The stages of `make check`, in order, each with its seconds; the first that fails ends the run. A table closes it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
# Builds and runs the compose file where there is no Docker engine; any script that takes the project's folder will do.
CONTAINER_CHECK=${CONTAINER_CHECK:-../shared/tools/container_check.sh}
SOURCES=(app eyeline model training tests bench docs deploy)

table=()

print_table() {
  printf '\n%-16s %8s  %s\n' stage seconds result
  printf '%s\n' "${table[@]}"
  printf '%-16s %8d\n' total "$SECONDS"
}

# stage NAME COMMAND...: run it, note the seconds, stop at the first failure.
stage() {
  local name=$1 begin=$SECONDS result=ok
  shift
  printf '\n== %s\n' "$name"
  "$@" || result="FAILED ($?)"
  table+=("$(printf '%-16s %8d  %s' "$name" $((SECONDS - begin)) "$result")")
  printf '== %s: %s, %d s\n' "$name" "$result" $((SECONDS - begin))
  [ "$result" = ok ] && return
  print_table
  exit 1
}

environments() {
  # Side by side: unpacking is bound by one core, downloading by the network.
  make --jobs=2 PYTHON="$PYTHON" .venv/.ready .venv-runtime/.ready .venv-oracle/.ready .venv-clients/.locked &&
    make weights build/helm
}

lint() {
  .venv/bin/ruff format --check "${SOURCES[@]}" &&
    .venv/bin/ruff check "${SOURCES[@]}" &&
    .venv/bin/lint-imports --no-logo
}

# A copy of what git would commit, without environments and weights: what a builder of the image has.
export_tree() {
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' path; do [ ! -e "$path" ] || printf '%s\0' "$path"; done |
    tar --create --null --files-from=- | tar --extract --directory="$1"
}

container() {
  if [ -r "$CONTAINER_CHECK" ]; then
    local tree status=0
    tree=$(mktemp --directory)
    export_tree "$tree" && SCALE='' bash "$CONTAINER_CHECK" "$tree" || status=$?
    rm -rf "$tree"
    return $status
  fi
  if ! docker info >/dev/null 2>&1; then
    echo "The container check needs a Docker engine (docker info fails here), or CONTAINER_CHECK=SCRIPT." >&2
    return 1
  fi
  local compose=(docker compose --project-name eyeline-check) status=0
  export EYELINE_PUBLISHED_PORT=18080 PROMETHEUS_PUBLISHED_PORT=19090
  "${compose[@]}" up --build --detach --wait --wait-timeout 120 || status=$?
  "${compose[@]}" down --volumes
  return $status
}

stage set-up environments
stage lint lint
stage types .venv/bin/mypy
# Two processes, a file at a time: most of these tests keep one core busy.
stage unit .venv/bin/pytest --numprocesses=2 --dist=loadfile -m "not e2e and not oracle and not clients and not cuda and not browser and not fuzz and not ray"
stage end-to-end .venv/bin/pytest -m e2e
stage oracles .venv-oracle/bin/pytest -m oracle tests/oracle
stage clients .venv-clients/bin/pytest -m clients tests/clients
stage browser .venv/bin/pytest -m browser
stage fuzz .venv/bin/pytest -m fuzz
stage container container
print_table
