"""The text that the main job continues when none is given."""

DEFAULT_PROMPT = '''"""Read settings from a file with one `name = value` a line."""

import os
import sys


class SettingsError(Exception):
    """Raised when a line cannot be parsed."""

    def __init__(self, filename, lineno, message):
'''
"""Written for this purpose in the manner of the standard library: no file that the shipped pair was trained on."""
