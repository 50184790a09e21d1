#!/bin/sh
# Stand-in for df: tmp and the folder of the stacks are file systems of their own, sizes from state.sh; POSIX columns.
if [ -n "${LAB_STATE:-}" ]; then state=${LAB_STATE%.json}.sh; else state=${0%/root/usr/bin/*}/state.sh; fi
. "$state"
root=${state%/state.sh}/root
inodes=0 dirs=0 rc=0

row() { # row SOURCE FREE_KIB FREE_INODES MOUNT
  if [ "$inodes" = 1 ]; then free=$3 total=61054976; else free=$2 total=$DISK_KIB; fi
  [ "$total" -ge "$free" ] || total=$free
  used=$((total - free))
  percent=0
  [ "$total" -eq 0 ] || percent=$(((used * 100 + total - 1) / total))
  printf '%-16s %12d %12d %12d %7d%% %s\n' "$1" "$total" "$used" "$free" "$percent" "$4"
}

place() { # row of the file system that holds $1
  case $1/ in
    "$root"/tmp/*) row /dev/nvme1n1p1 "$TMP_FREE_KIB" "$TMP_FREE_INODES" "$root/tmp" ;;
    "$root"/opt/*) row /dev/nvme2n1p1 "$BASE_FREE_KIB" "$BASE_FREE_INODES" "$root/opt" ;;
    *) row /dev/nvme0n1p2 "$ROOT_FREE_KIB" 48843776 "$root" ;;
  esac
}

head_line() {
  if [ "$inodes" = 1 ]; then
    printf '%-16s %12s %12s %12s %8s %s\n' Filesystem Inodes IUsed IFree IUse% 'Mounted on'
  else
    printf '%-16s %12s %12s %12s %8s %s\n' Filesystem 1024-blocks Used Available Capacity 'Mounted on'
  fi
}

for arg; do
  case $arg in
    --) ;;
    -*i*) inodes=1 ;;
    -*) ;;
    *) dirs=$((dirs + 1)) ;;
  esac
done
head_line
if [ "$dirs" = 0 ]; then place "$root"; place "$root/tmp"; place "$root/opt"; fi
for arg; do
  case $arg in
    -*) continue ;;
    /*) path=$arg ;;
    *) path=$PWD/$arg ;;
  esac
  if [ -e "$path" ]; then place "$path"; else
    printf 'df: %s: No such file or directory\n' "$arg" >&2
    rc=1
  fi
done
exit "$rc"
