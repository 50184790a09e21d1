"""SIMULATED: a stand-in for SGLang: its launcher, its endpoints, its log, the speed of $LAB_STATE."""

DEFAULT_VERSION = "0.5.23"


def own_version() -> str:
    """The version of the wheel this came in; the default when it runs from a folder."""
    from importlib import metadata  # noqa: PLC0415  # costs more than the rest of this package

    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return DEFAULT_VERSION


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for."""
    if name != "__version__":
        raise AttributeError(f"module 'sglang' has no attribute {name!r}")
    return own_version()
