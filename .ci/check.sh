#!/usr/bin/env bash
# The stages of `make check`, in order, each with its seconds; the first that fails ends the run. A table closes it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

PYTHON=${PYTHON:-python3}
read -ra sources <<<"${SOURCES:?the Makefile names the folders: make check}"
# What a stage returns that found nothing here to run on; it has said why.
SKIPPED=75

table=()

print_table() {
  printf '\n%-16s %8s  %s\n' stage seconds result
  printf '%s\n' "${table[@]}"
  printf '%-16s %8d\n' total "$SECONDS"
}

# stage NAME COMMAND...: run it, note the seconds, stop at the first failure.
stage() {
  local name=$1 begin=$SECONDS status=0 result
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  case $status in
    0) result=ok ;;
    "$SKIPPED") result=skipped ;;
    *) result="FAILED ($status)" ;;
  esac
  table+=("$(printf '%-16s %8d  %s' "$name" $((SECONDS - begin)) "$result")")
  printf '== %s: %s, %d s\n' "$name" "$result" $((SECONDS - begin))
  [[ $result == FAILED* ]] || return 0
  print_table
  exit 1
}

environments() {
  # Side by side: unpacking is bound by one core, downloading by the network.
  make --jobs=2 PYTHON="$PYTHON" .venv/.ready .venv-runtime/.ready .venv-oracle/.ready .venv-clients/.locked &&
    make weights build/helm
}

lint() {
  .venv/bin/ruff format --check "${sources[@]}" &&
    .venv/bin/ruff check "${sources[@]}" &&
    .venv/bin/lint-imports --no-logo &&
    .venv/bin/hadolint Dockerfile &&
    git ls-files -z .ci/run .ci/setup '*.sh' | xargs --null .venv/bin/shellcheck --external-sources
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
stage container deploy/check/run.sh
print_table
