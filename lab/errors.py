"""The one error a user of the lab can cause."""


class LabError(Exception):
    """What is wrong, in one or two lines, for people."""
