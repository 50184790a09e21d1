"""Which torch this claims to be; the wheel that carries this package brings its own copy of this file."""

__version__ = "2.14.1+cu130"
cuda: str | None = "13.0"
