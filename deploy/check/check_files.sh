#!/usr/bin/env bash
# Whether docker compose reads every combination of the project's compose files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

overrides=(deploy/compose.*.yml)
# APP_API_KEYS_FILE is asked for by one of them.
export APP_API_KEYS_FILE=/dev/null

for ((subset = 0; subset < 1 << ${#overrides[@]}; subset++)); do
  files=(-f docker-compose.yml)
  for index in "${!overrides[@]}"; do
    ((subset >> index & 1)) && files+=(-f "${overrides[index]}")
  done
  docker compose "${files[@]}" --profile observability config --quiet || {
    echo "docker compose ${files[*]} config" >&2
    exit 1
  }
done
echo "docker compose config: $((1 << ${#overrides[@]})) combinations of files"
