"""Makes the files of this folder stages: only here does pytest learn to reach hosts."""

pytest_plugins = ["fleet.plugin"]
