#!/usr/bin/env bash
# Replaces every replica behind the balancer by a new one, such as one of a newer image, without a failed request: first a
# new replica has to be healthy, then an old one is told to stop, says that it is not ready, and finishes what it has.
# For that time there is one replica more than usual. A new replica that does not get healthy is removed, and the old ones
# stay.
#
#   deploy/rolling_restart.sh [OPTION OF docker compose]...
#
# Without options: -f docker-compose.yml -f deploy/compose.scale.yml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SERVICE=app
PATIENCE_SECONDS=${PATIENCE_SECONDS:-180}

[ $# -gt 0 ] || set -- -f docker-compose.yml -f deploy/compose.scale.yml
compose=(docker compose "$@")

replicas() { "${compose[@]}" ps --quiet "$SERVICE"; }

mapfile -t old < <(replicas)
if [ ${#old[@]} -eq 0 ]; then
  echo "no replica of $SERVICE runs: nothing to restart" >&2
  exit 1
fi

for container in "${old[@]}"; do
  before=$(replicas)
  if ! "${compose[@]}" up --detach --no-deps --no-recreate --no-build --scale "$SERVICE=$((${#old[@]} + 1))" \
    --wait --wait-timeout "$PATIENCE_SECONDS" "$SERVICE"; then
    for new in $(replicas); do
      grep --quiet "$new" <<<"$before" && continue
      echo "the new replica did not get healthy in $PATIENCE_SECONDS seconds; its last words:" >&2
      docker logs --tail 20 "$new" >&2
      docker rm --force "$new" >/dev/null
    done
    echo "stopped: the replicas that are left go on serving" >&2
    exit 1
  fi
  # SIGTERM, then as long as stop_grace_period says.
  docker stop "$container" >/dev/null
  docker rm "$container" >/dev/null
  echo "replaced ${container:0:12}"
done
