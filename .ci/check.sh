#!/usr/bin/env bash
# The stages of `make check`, each with its seconds; the first that fails ends the run. A table closes it.
#
# Two cores are what it is made for. A stage of many tests runs them in two processes; what mostly waits, for a network
# or for one core, runs beside other stages, and its output is shown whole when it is over.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

PYTHON=${PYTHON:-python3}
read -ra sources <<<"${SOURCES:?the Makefile names the folders: make check}"
# What a stage returns that found nothing here to run on; it has said why.
SKIPPED=75

table=()
declare -A beside=() # name -> process, of each stage that runs beside the others
outputs=$(mktemp --directory)

end() {
  local process
  for process in "${beside[@]}"; do
    kill -- "-$process" 2>/dev/null # a process group of its own, which may have something to take down
    wait "$process" 2>/dev/null
  done
  rm -rf "$outputs"
}
trap end EXIT
trap 'exit 130' INT TERM

print_table() {
  printf '\n%-16s %8s  %s\n' stage seconds result
  printf '%s\n' "${table[@]}"
  printf '%-16s %8d\n' total "$SECONDS"
}

# note NAME SECONDS STATUS: say how a stage ended, and stop where it failed.
note() {
  local result
  case $3 in
    0) result=ok ;;
    "$SKIPPED") result=skipped ;;
    *) result="FAILED ($3)" ;;
  esac
  table+=("$(printf '%-16s %8d  %s' "$1" "$2" "$result")")
  printf '== %s: %s, %d s\n' "$1" "$result" "$2"
  [[ $result == FAILED* ]] || return 0
  print_table
  exit 1
}

# stage NAME COMMAND...: run it to its end.
stage() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  note "$name" $((SECONDS - begin)) "$status"
  for name in "${!beside[@]}"; do
    kill -0 "${beside[$name]}" 2>/dev/null || finish "$name"
  done
}

# begin NAME COMMAND...: run it beside the stages that follow, until `finish NAME` at the latest.
begin() {
  local name=$1 begin=$SECONDS
  shift
  printf '\n== %s: begins, beside what follows\n' "$name"
  set -m # for a process group of its own
  {
    status=0
    "$@" || status=$?
    echo $((SECONDS - begin)) >"$outputs/$name.seconds"
    exit "$status"
  } >"$outputs/$name" 2>&1 </dev/null &
  beside[$name]=$!
  set +m
}

# finish NAME: wait for it, and show what it said. Nothing, where that was done already.
finish() {
  local name=$1 status=0
  [[ -v beside[$name] ]] || return 0
  wait "${beside[$name]}" || status=$?
  unset "beside[$name]"
  printf '\n== %s\n' "$name"
  cat "$outputs/$name"
  note "$name" "$(cat "$outputs/$name.seconds")" "$status"
}

# Side by side: unpacking is bound by one core, downloading by the network.
first_environments() {
  make --jobs=2 PYTHON="$PYTHON" .venv/.ready .venv-runtime/.ready && make --jobs=2 weights build/helm
}

other_environments() {
  make PYTHON="$PYTHON" .venv-oracle/.ready .venv-clients/.locked
}

lint() {
  .venv/bin/ruff format --check "${sources[@]}" &&
    .venv/bin/ruff check "${sources[@]}" &&
    .venv/bin/lint-imports --no-logo &&
    .venv/bin/hadolint Dockerfile &&
    git ls-files -z .ci/run .ci/setup '*.sh' | xargs --null .venv/bin/shellcheck --external-sources
}

# In two processes. A file stays in one where its tests share servers that are dear to start, or their state.
pytest_in_two() { .venv/bin/pytest --numprocesses=2 "$@"; }

stage set-up first_environments
begin more-set-up other_environments
stage lint lint
stage types .venv/bin/mypy
stage unit pytest_in_two --dist=loadfile -m "not e2e and not oracle and not clients and not cuda and not browser and not fuzz and not ray"
stage end-to-end pytest_in_two --dist=loadfile -m e2e
finish more-set-up
# It downloads and builds for so long; its checks come afterwards.
begin container deploy/check/run.sh
stage oracles .venv-oracle/bin/pytest -m oracle tests/oracle
stage clients .venv-clients/bin/pytest -m clients tests/clients
finish container
stage browser pytest_in_two --dist=load -m browser
# Both of its tests at once, each with a server of its own and half of FUZZ_SECONDS.
stage fuzz pytest_in_two --dist=load -m fuzz
print_table
