#!/usr/bin/env bash
# Makes stand-ins, under their names, for those images of the compose files whose programs Debian has: HAProxy, Prometheus
# and Alertmanager. Grafana is in no Debian package and stays out. For an engine that reaches no registry.
#
# Environment: BASE_IMAGE, an image of Debian 12; CACHE, a folder that keeps packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/check/debian_packages.sh
. deploy/check/debian_packages.sh

CACHE=${CACHE:-${TMPDIR:-/tmp}/eyeline-check-cache}
context=$(mktemp --directory)
trap 'rm -rf "$context"' EXIT

unpack_packages bookworm "$context/root" prometheus prometheus-alertmanager haproxy liblua5.3-0 libopentracing1 libopentracing-c-wrapper0

# stand_in IMAGE PROGRAM...: the programs named, and on stdin what the Dockerfile says besides.
stand_in() {
  local image=$1
  shift
  {
    echo "FROM $BASE_IMAGE"
    printf 'COPY root/%s /bin/\n' "$@"
    cat
  } >"$context/Dockerfile"
  docker build --quiet --network host --tag "$image" "$context" >/dev/null
}

for image in $(docker compose -f docker-compose.yml -f deploy/compose.scale.yml --profile observability config --images); do
  case $image in
    haproxy:*) stand_in "$image" usr/sbin/haproxy <<'END' ;;
COPY root/usr/lib/*/lib*.so.* /usr/lib/
RUN useradd --system haproxy
USER haproxy
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
END
    prom/prometheus:*) stand_in "$image" usr/bin/prometheus usr/bin/promtool <<'END' ;;
RUN mkdir /prometheus && chown nobody /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
END
    prom/alertmanager:*) stand_in "$image" usr/bin/prometheus-alertmanager usr/bin/amtool <<'END' ;;
COPY root/usr/share/prometheus/alertmanager /usr/share/prometheus/alertmanager
RUN mkdir /alertmanager && chown nobody /alertmanager
USER nobody
ENTRYPOINT ["prometheus-alertmanager"]
END
  esac
done
