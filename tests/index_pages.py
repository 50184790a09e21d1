"""Pages of wheel indexes in the forms that are really served, and small wheels to serve."""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

SHA = {name: hashlib.sha256(name.encode()).hexdigest() for name in "abcdef"}
GITHUB = "https://github.com/sgl-project/whl/releases/download/v0.3.21/"
LINUX = "manylinux_2_28_x86_64"


def link(address: str, file: str, sha256: str = "", attributes: str = "") -> str:
    """One row of a PEP 503 page; in the address a `+` may be written as `%2B`."""
    return f'<a href="{address}{f"#sha256={sha256}" if sha256 else ""}" {attributes}>{file}</a><br/>\n'


def _pytorch(folder: str, file: str, sha256: str = "", attributes: str = "") -> str:
    return link(folder + file.replace("+", "%2B"), file, sha256, attributes)


def _sgl(file: str, sha256: str) -> str:
    return link(GITHUB + file, file, sha256)


METADATA = f'data-dist-info-metadata="sha256={SHA["b"]}" data-core-metadata="sha256={SHA["b"]}"'
PYTORCH = (
    "<!DOCTYPE html>\n<html>\n  <body>\n    <h1>Links for torch</h1>\n"
    + _pytorch("https://other.example.org/whl/cu130/", f"torch-2.9.1+cu130-cp312-cp312-{LINUX}.whl", SHA["a"], METADATA)
    + _pytorch("/whl/cu130/", f"torch-2.10.0+cu130-cp312-cp312-{LINUX}.whl", SHA["c"])
    + _pytorch("/whl/cu130/", "torch-2.10.0+cu130-cp312-cp312-manylinux_2_28_aarch64.whl", SHA["d"])
    + _pytorch("/whl/", "torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl", SHA["e"])
    + "  </body>\n</html>\n<!--TIMESTAMP 1769600000-->\n"
)
NIGHTLY = "<!DOCTYPE html><html><body><h1>Links for torch</h1>\n" + _pytorch(
    "/whl/nightly/cu130/", f"torch-2.14.0.dev20260620+cu130-cp312-cp312-{LINUX}.whl"
)
SGL_KERNEL = "<!DOCTYPE html>\n<h1>SGLang Kernel Wheels</h1>\n" + "".join(
    (
        _sgl("sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl", SHA["a"]),
        _sgl("sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl", SHA["b"]),
        _sgl("sgl_kernel-0.3.21+cu130-cp312-abi3-manylinux2014_x86_64.whl", SHA["c"]),
        _sgl("sgl_kernel-0.3.14+cu128-cp310-abi3-manylinux2014_x86_64.whl", SHA["d"]),
        _sgl("sgl_kernel-0.3.3-cp39-abi3-manylinux2014_x86_64.whl", SHA["e"]),
    )
)
FILES = "../../files/"
RELATIVE = (
    "<html><body>"
    + link(
        f"{FILES}demo-1.0-py3-none-any.whl", "demo-1.0-py3-none-any.whl", SHA["a"], 'data-requires-python="&gt;=3.11"'
    )
    + link(f"{FILES}demo-1.1-py3-none-any.whl", "demo-1.1-py3-none-any.whl", SHA["b"], 'data-yanked="broken"')
    + link(f"{FILES}demo-0.9.tar.gz", "demo-0.9.tar.gz", SHA["c"])
    + link(f"{FILES}demo-0.95-py3-none-any.whl", "demo-0.95-py3-none-any.whl", SHA["d"], 'data-requires-python="3.x"')
    + '<a href="../">up</a></body></html>'
)
LOGIN = "<!DOCTYPE html><html><title>Sign in</title><body><a href='/help'>Help</a><form></form></body></html>"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def simple_json(project: str, files: Sequence[dict[str, Any]], version: str = "1.1") -> bytes:
    """A page in PEP 691 form."""
    return json.dumps({"meta": {"api-version": version}, "name": project, "files": list(files)}).encode()


def entry(file: str, sha256: str = SHA["a"], **more: Any) -> dict[str, Any]:
    """One file of a page in PEP 691 form."""
    return {"filename": file, "url": f"../../files/{file}", "hashes": {"sha256": sha256} if sha256 else {}, **more}


def metadata(name: str, version: str, requires: Sequence[str] = ()) -> str:
    """The METADATA of a wheel."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"


def wheel(name: str, version: str, requires: Sequence[str] = (), tag: str = "py3-none-any") -> tuple[str, bytes]:
    """File name and bytes of a wheel that holds nothing but its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {
        f"{info}/METADATA": metadata(name, version, requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path), text)
        record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in contents.items())
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record)
    return f"{stem}-{tag}.whl", raw.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
