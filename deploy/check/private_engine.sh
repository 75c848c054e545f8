# shellcheck shell=bash
# A Docker engine of one's own, for a Debian machine without one and without a registry: the programs come from Debian
# packages that are unpacked, not installed; the base image is made by debootstrap; everything lies in one folder and one
# network namespace, and is gone at the end. Sourced by run.sh. Environment: CACHE, a folder that keeps what was fetched.

CACHE=${CACHE:-${TMPDIR:-/tmp}/eyeline-check-cache}
BASE_IMAGE=python:3.11-slim-bookworm
PYTHON_VERSION=3.11
ENGINE_NAME=eyeline-check-$$
engine=

# shellcheck source=deploy/check/debian_packages.sh
. deploy/check/debian_packages.sh

# Prints what is missing to start an engine here; fails if nothing is.
private_engine_missing() {
  local program
  [ "$(id -u)" -eq 0 ] || { echo root; return; }
  for program in apt-get debootstrap dpkg ip iptables nsenter runc; do
    command -v "$program" >/dev/null || { echo "$program, from Debian's package of about that name"; return; }
  done
  mountpoint --quiet /sys/fs/cgroup || { echo "control groups"; return; }
  return 1
}

# An engine on this machine's network, without a network of its own: builds may download, and no firewall rule changes.
private_engine_start_for_builds() {
  engine=$(mktemp --directory /tmp/eyeline-engine.XXXXXX)
  chmod 755 "$engine"
  # Layers in memory, where there is room: deleting them on a disk takes longer than the checks.
  mount --types tmpfs --options size=14g,mode=755 eyeline-engine "$engine" || echo "no tmpfs here, using the disk"
  mkdir -p "$CACHE" "$engine/docker/cli-plugins"
  export CACHE BASE_IMAGE DOCKER_HOST=unix://$engine/socket DOCKER_CONFIG=$engine/docker
  # An empty index is pip's own configuration: _base_image lays a CPU build of torch where pip finds it, if there is one.
  export TORCH_INDEX_URL=

  local programs=$CACHE/programs
  # Of Debian 13, since 12 has a Docker without compose. runc is the installed one: 13's needs a newer C library.
  [ -x "$programs/usr/sbin/dockerd" ] ||
    unpack_packages trixie "$programs" docker.io docker-cli docker-compose docker-buildx containerd tini
  ln -sf "$programs"/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
  export PATH=$programs/usr/bin:$programs/usr/sbin:$PATH

  _base_image "$CACHE/base"
  _dockerd --bridge=none --iptables=false --ip6tables=false --ip-forward=false
  tar --create --directory="$CACHE/base" --exclude=./.complete . |
    docker import --change 'CMD ["python3"]' \
      --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' - "$BASE_IMAGE" >/dev/null
}

# The same engine, in a network namespace with no way out: what runs there can neither reach this machine nor a network.
private_engine_start_for_runs() {
  _stop_dockerd
  ip netns add "$ENGINE_NAME"
  ip --netns "$ENGINE_NAME" link set lo up
  _dockerd
}

# Run a command where the published ports are.
private_engine_inside() { nsenter --net="/run/netns/$ENGINE_NAME" "$@"; }

private_engine_stop() {
  [ -n "$engine" ] || return 0
  _stop_dockerd
  ip netns delete "$ENGINE_NAME" 2>/dev/null
  awk -v folder="$engine/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort --reverse | xargs --no-run-if-empty --max-args=1 umount 2>/dev/null
  find /sys/fs/cgroup -depth -type d -path "*/$ENGINE_NAME*" -exec rmdir {} + 2>/dev/null
  umount "$engine" 2>/dev/null
  rm -rf --one-file-system "$engine"
}

# _dockerd OPTION...: start it, in the network namespace once there is one, and wait until it answers.
_dockerd() {
  local prefix=()
  [ ! -e "/run/netns/$ENGINE_NAME" ] || prefix=(private_engine_inside)
  "${prefix[@]}" setsid dockerd --data-root "$engine/data" --exec-root "$engine/run" --pidfile "$engine/pid" \
    --host "$DOCKER_HOST" --group root --cgroup-parent "/$ENGINE_NAME" --storage-driver overlay2 \
    --default-ulimit nofile=4096:4096 "$@" >>"$engine/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 100); do
    docker version >/dev/null 2>&1 && return
    sleep 0.2
  done
  tail -5 "$engine/dockerd.log" >&2
  return 1
}

_stop_dockerd() {
  local pid
  pid=$(cat "$engine/pid" 2>/dev/null) || return 0
  # Only one that was started here: it names the folder.
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep --quiet "$engine" || return 0
  kill "$pid"
  for _ in $(seq 100); do
    [ -d "/proc/$pid" ] || break
    sleep 0.2
  done
  umount "$engine/run/netns/default" 2>/dev/null || true
}

# _base_image FOLDER: what stands in for python:3.11-slim-bookworm. The layout is that image's, with pyenv's Python in
# /usr/local, where there is one; else it is Debian's own Python.
_base_image() {
  local root=$1 python wheels folder
  [ ! -e "$root/.complete" ] || return 0
  rm -rf "$root"
  python=$(compgen -G "$HOME/.pyenv/versions/$PYTHON_VERSION.*" | sort --version-sort | tail -1)
  local packages=ca-certificates,python3,python3-pip,python3-venv
  [ -z "$python" ] || packages=ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libnsl2,libreadline8,libsqlite3-0,libssl3,libuuid1,zlib1g
  debootstrap --variant=minbase --include="$packages" bookworm "$root" "$(debian_mirror)" >"$engine/debootstrap.log" 2>&1 ||
    { tail -5 "$engine/debootstrap.log" >&2; return 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root/etc/hostname"
  if [ -n "$python" ]; then
    # As the official image: without bytecode and the library's own tests.
    tar --create --directory="$python" --exclude=__pycache__ --exclude='lib/python*/test' --exclude='lib/python*/config-*' \
      --exclude='lib/python*/site-packages/*' --exclude='lib/*.a' "bin/python$PYTHON_VERSION" lib include |
      tar --extract --directory="$root/usr/local"
    chroot "$root" ldconfig
    chroot "$root" "/usr/local/bin/python$PYTHON_VERSION" -m ensurepip >/dev/null 2>&1
    find "$root/usr/local" -name __pycache__ -prune -exec rm -rf {} +
    ln -sf "python$PYTHON_VERSION" "$root/usr/local/bin/python"
    ln -sf "python$PYTHON_VERSION" "$root/usr/local/bin/python3"
    ln -sf pip3 "$root/usr/local/bin/pip"
  else
    ln -sf /usr/bin/python3 "$root/usr/local/bin/python"
    rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
  fi
  # How this machine reaches package indexes is how a build on it does: its certificates, and torch from a folder.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  wheels=/opt/wheels
  mkdir -p "$root$wheels"
  for folder in $("${PYTHON:-python3}" -m pip config get global.find-links 2>/dev/null); do
    cp "$folder"/torch-*+cpu-*"cp${PYTHON_VERSION/./}"*.whl "$root$wheels/" 2>/dev/null || true
  done
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\nfind-links = %s\n' "$wheels" >"$root/etc/pip.conf"
  touch "$root/.complete"
}
