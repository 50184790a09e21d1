#!/bin/sh
# Stand-in for sudo: wants -n where there is no terminal, clears the environment as env_reset does, logs, executes.
if [ -n "${LAB_STATE:-}" ]; then state=${LAB_STATE%.json}.sh; else state=${0%/root/usr/bin/*}/state.sh; fi
. "$state"
home=${state%/state.sh}
ask=1
while [ $# -gt 0 ]; do
  case $1 in
    -n | --non-interactive) ask=0 ;;
    -u | -g) shift ;;
    --) shift; break ;;
    -k | -K | -v) [ $# -gt 1 ] || exit 0 ;;
    -E | -H | -S | -b) ;;
    -*) printf 'sudo: invalid option -- %s\n' "$1" >&2; exit 1 ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || { printf 'usage: sudo [-n] [-u user] command [arg ...]\n' >&2; exit 1; }
if [ "$SUDO" != nopasswd ]; then
  if [ "$ask" = 0 ]; then printf 'sudo: a password is required\n' >&2
  elif [ -t 0 ]; then printf 'sudo: 3 incorrect password attempts\n' >&2
  else printf 'sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper\nsudo: a password is required\n' >&2; fi
  exit 1
fi
if [ "$ask" = 1 ] && [ ! -t 0 ]; then
  printf 'sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper\nsudo: a password is required\n' >&2
  exit 1
fi
printf '%s\n' "$*" >>"$home/sudo.log"
exec env -i PATH="$PATH" HOME="$home/root/root" USER=root LOGNAME=root SUDO_USER="${USER:-ops}" SUDO_UID=1001 \
  LANG="${LANG:-C.UTF-8}" TERM="${TERM:-dumb}" LAB_ROOT="$home/root" LAB_STATE="$home/state.json" LAB_UID=0 "$@"
