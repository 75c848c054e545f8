# shellcheck shell=bash
# Debian packages without installing them: downloaded, checked by apt against Debian's keys, and unpacked.
# Environment: CACHE, a folder that keeps them.

# unpack_packages SUITE FOLDER PACKAGE...: lay the files of the packages, without what they depend on, into a folder.
unpack_packages() {
  local suite=$1 folder=$2 state=$CACHE/apt-$1 mirror package
  shift 2
  mirror=$(debian_mirror)
  mkdir -p "$folder" "$state/lists/partial" "$state/cache/archives/partial" "$state/debs"
  : >"$state/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$state/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache"
    -o APT::Sandbox::User=root)
  for package in "$@"; do
    compgen -G "$state/debs/${package}_*.deb" >/dev/null && continue
    [ -e "$state/updated.$$" ] || { "${apt[@]}" update && touch "$state/updated.$$"; }
    (cd "$state/debs" && "${apt[@]}" download "$package")
  done
  for package in "$@"; do dpkg --extract "$state/debs/${package}"_*.deb "$folder"; done
}

# Where this machine gets Debian from.
debian_mirror() {
  local found
  found=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null)
  [ -n "$found" ] || found=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^[a-z]+:/) { print $i; exit } }' /etc/apt/sources.list)
  echo "${found:-http://deb.debian.org/debian}"
}
