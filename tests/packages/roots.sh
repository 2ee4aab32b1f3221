# shellcheck shell=bash
# Clean roots: Debian of one release, with nothing but what debootstrap and the packages named here
# put there. Sourced by the scripts of this folder, which define $root, the repository.
# What is downloaded for a root is kept in build/roots, as one archive.

readonly kMirror=${LANEMALLOC_MIRROR:-http://deb.debian.org/debian}
# shellcheck disable=SC2154  # the sourcing script has it
readonly kRoots=$root/build/roots

can_have_roots() { [[ $EUID -eq 0 ]]; }

# make_root RELEASE FOLDER PACKAGE...: a new root in FOLDER.
make_root() {
  local release=$1 folder=$2 archive
  shift 2
  archive=$kRoots/$release-$(sha256sum <<<"$*" | cut -c 1-8).tar
  if [[ ! -e $archive ]]; then
    "$root/tools/install-packages" debootstrap >&2
    mkdir -p "$kRoots"
    rm -rf "$archive.root"
    debootstrap --variant=minbase --include="$(IFS=,; echo "$*")" "$release" \
      "$archive.root" "$kMirror" >"$archive.log" 2>&1 ||
      { tail -n 20 "$archive.log" >&2; return 1; }
    tar -C "$archive.root" --exclude=./var/cache/apt/archives/'*.deb' -cf "$archive.new" .
    mv "$archive.new" "$archive"
    rm -rf "$archive.root"
  fi
  mkdir -p "$folder"
  tar -C "$folder" -xf "$archive"
}

# in_root FOLDER COMMAND...: with /proc and /dev, and without a network.
in_root() {
  local folder=$1
  shift
  # shellcheck disable=SC2016  # for the inner shell
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    HOME=/root unshare --mount --pid --fork --net sh -c '
      mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
        exec chroot "$0" "$@"' "$folder" "$@"
}
