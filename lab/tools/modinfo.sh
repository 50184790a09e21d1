#!/bin/sh
# Stand-in for modinfo: the module on disk (driver_installed), which need not be the one that is loaded.
if [ -n "${LAB_STATE:-}" ]; then state=${LAB_STATE%.json}.sh; else state=${0%/root/usr/bin/*}/state.sh; fi
. "$state"
field='' module=''
while [ $# -gt 0 ]; do
  case $1 in
    -F | --field) field=$2; shift ;;
    --field=*) field=${1#*=} ;;
    -*) ;;
    *) module=$1 ;;
  esac
  shift
done
if [ "$module" != nvidia ] || [ "$DRIVER_INSTALLED" = none ]; then
  printf 'modinfo: ERROR: Module %s not found.\n' "$module" >&2
  exit 1
fi
file=/lib/modules/6.8.0-79-generic/updates/dkms/nvidia.ko.zst
case $field in
  version) printf '%s\n' "$DRIVER_INSTALLED" ;;
  license) printf '%s\n' "$MODULE_LICENSE" ;;
  filename) printf '%s\n' "$file" ;;
  '') printf 'filename:       %s\nversion:        %s\nlicense:        %s\n' "$file" "$DRIVER_INSTALLED" "$MODULE_LICENSE" ;;
  *) ;;
esac
