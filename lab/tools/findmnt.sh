#!/bin/sh
# Stand-in for findmnt: mount options of tmp from state.sh, ordinary ones elsewhere.
if [ -n "${LAB_STATE:-}" ]; then state=${LAB_STATE%.json}.sh; else state=${0%/root/usr/bin/*}/state.sh; fi
. "$state"
root=${state%/state.sh}/root
columns=TARGET,SOURCE,FSTYPE,OPTIONS target=$root titles=1
while [ $# -gt 0 ]; do
  case $1 in
    --output | -o | -*o) case $1 in *n*o) titles=0 ;; esac; columns=$2; shift ;;
    --target | -T) target=$2; shift ;;
    --target=*) target=${1#*=} ;;
    --noheadings | -n) titles=0 ;;
    -*) ;;
    *) target=$1 ;;
  esac
  shift
done
[ -e "$target" ] || exit 1
case $target/ in
  "$root"/tmp/*) mount=$root/tmp source=/dev/nvme1n1p1 options=$TMP_OPTIONS ;;
  "$root"/opt/*) mount=$root/opt source=/dev/nvme2n1p1 options=rw,relatime ;;
  *) mount=$root source=/dev/nvme0n1p2 options=rw,relatime ;;
esac
[ "$titles" = 0 ] || printf '%s\n' "$columns"
old=$IFS; IFS=,
out=
for column in $columns; do
  case $column in
    TARGET) value=$mount ;;
    SOURCE) value=$source ;;
    FSTYPE) value=ext4 ;;
    OPTIONS) value=$options ;;
    *) printf 'findmnt: unknown column: %s\n' "$column" >&2; exit 1 ;;
  esac
  out="$out${out:+ }$value"
done
IFS=$old
printf '%s\n' "$out"
