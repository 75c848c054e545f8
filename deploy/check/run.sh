#!/usr/bin/env bash
# Builds the image, starts the compose files for real and checks how they behave (checks.py): what `make check` runs as
# its stage "container", and with --all what `make check-long` runs.
#
# Where a Docker engine answers, it is used, and images come from their registry. Where none does, Debian as root can
# start one of its own without a registry (private_engine.sh). Elsewhere nothing is checked, and the exit code is 75.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON=${PYTHON:-python3}
PROJECT=eyeline-check-$$
SKIPPED=75
# What a person runs on the same machine keeps its ports.
export EYELINE_PUBLISHED_PORT=18080 PROMETHEUS_PUBLISHED_PORT=19090 ALERTMANAGER_PUBLISHED_PORT=19093
# The check of the memory limit fills it.
export APP_MEMORY=1g

# shellcheck source=deploy/check/private_engine.sh
. deploy/check/private_engine.sh

work=$(mktemp --directory)
begin=$SECONDS
say() { printf '[%3d s] %s\n' $((SECONDS - begin)) "$*"; }

# A copy of what git would commit, without environments and weights of others: what a builder of the image has.
export_tree() {
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' path; do [ ! -e "$path" ] || printf '%s\0' "$path"; done |
    tar --create --null --files-from=- | tar --extract --directory="$1"
}

clean_up() {
  set +e
  if [ -n "${compose:-}" ]; then
    $compose -f deploy/compose.scale.yml --profile observability down --volumes --timeout 5 >/dev/null 2>&1
  fi
  private_engine_stop
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

if docker info >/dev/null 2>&1; then
  build_network=default
  inside=()
elif missing=$(private_engine_missing); then
  echo "container check skipped: no Docker engine answers here, and starting one needs $missing"
  exit "$SKIPPED"
else
  private_engine_start_for_builds
  build_network=host
  inside=(private_engine_inside)
fi

mkdir "$work/tree"
export_tree "$work/tree"
cd "$work/tree"
cat >"$work/build.yml" <<END
services: {app: {build: {network: $build_network}}}
END
compose="docker compose -p $PROJECT -f docker-compose.yml -f $work/build.yml"

say "files"
deploy/check/check_files.sh
# checks.py starts what is here and fetches nothing, so that no check waits for a registry.
if [ ${#inside[@]} -gt 0 ]; then
  deploy/check/stand_ins.sh
  say "stand-ins for images made"
else
  $compose -f deploy/compose.scale.yml --profile observability pull --quiet --policy missing prometheus alertmanager balancer
  say "images pulled"
fi
say "build"
$compose --progress plain build app >"$work/build.log" 2>&1 || { tail -40 "$work/build.log"; exit 1; }
[ ${#inside[@]} -eq 0 ] || private_engine_start_for_runs
say "checks"
COMPOSE=$compose "${inside[@]}" "$PYTHON" deploy/check/checks.py "$@"
say "done"
