"""Asks a host for the first bytes of the runfile: a network that serves us may not serve the host."""

import re
import shlex
from collections.abc import Mapping

from checks.catalogue import PLATFORMS
from checks.reply import Reply, nothing, public, whole_size
from checks.verdict import HEAD_BYTES
from fleet.clock import now

_PYTHON = f"""\
import sys,urllib.request as r
u=sys.argv[1]
q=r.Request(u,headers={{'Range':'bytes=0-{HEAD_BYTES - 1}','User-Agent':'gpu-stack-upgrade'}})
try: a=r.urlopen(q,timeout=20)
except r.HTTPError as e: a=e
if a.geturl()!=u: print('HTTP/1.1 301\\nLocation: '+a.geturl()+'\\n')
print('HTTP/1.1',a.getcode());print(str(a.headers).strip()+'\\n');sys.stdout.flush()
if a.getcode() in (200,206): sys.stdout.buffer.write(a.read({HEAD_BYTES}))"""


def script(urls: Mapping[str, str]) -> str:
    """Shell that prints headers and first bytes of the address for the host's platform; ends within 30 s."""
    cases = " ".join(
        f"{machine}) u={shlex.quote(urls[platform])};;" for machine, platform in PLATFORMS.items() if platform in urls
    )
    # -f keeps error pages out of what is printed, so that only headers stand between two attempts.
    curl = f"curl -fsSL --connect-timeout 5 --max-time 10 --retry 2 --retry-max-time 15 -r 0-{HEAD_BYTES - 1} -D -"
    return (
        f"case $(uname -m) in {cases} *) exit 3;; esac\n"
        f'if command -v curl >/dev/null; then timeout 28 {curl} "$u" | head -c 16384\n'
        f'else timeout 25 python3 -c {shlex.quote(_PYTHON)} "$u"; fi'
    )


def parse(text: str, url: str) -> Reply:
    """What the script printed: the headers of each answer, then the first bytes of the last one."""
    blocks, rest = _blocks(text.replace("\r\n", "\n"))
    if not blocks:
        lines = text.strip().splitlines()
        return nothing(url, lines[-1][:200] if lines else "no answer")
    headers = [_headers(block) for block in blocks]
    return Reply(
        url=public(url),
        status=int(blocks[-1].split()[1]),
        content_type=headers[-1].get("Content-Type", ""),
        size_bytes=whole_size(headers[-1]),
        body=rest.encode()[:HEAD_BYTES],
        redirects=[public(one["Location"]) for one in headers[:-1] if "Location" in one],
        attempts=sum("Location" not in one for one in headers),
        at=now(),
    )


def _blocks(text: str) -> tuple[list[str], str]:
    """The header blocks at the start, and what follows them."""
    blocks = []
    # curl's own words about an attempt that failed may stand before the next one's headers.
    while found := re.match(r"(?:(?:curl|Warning): .*\n)*(HTTP/[\d.]+ \d{3}(?!\S).*(?:\n.+)*)(?:\n\n|\n?\Z)", text):
        blocks.append(found[1])
        text = text[found.end() :]
    return blocks, text


def _headers(block: str) -> dict[str, str]:
    rows = (row.partition(":") for row in block.splitlines()[1:])
    return {key.strip().title(): value.strip() for key, _, value in rows}
