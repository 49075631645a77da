"""What goes wrong for a user, and the exit code of the command line for it.

A message has at most five lines: which field of which file, what was expected, what was found. Codes 130 and 143 (SIGINT and
SIGTERM) are the training loop's own.
"""

from typing import ClassVar


class JaxagentError(Exception):
    """Base of the errors that the command line shows without a traceback; raised itself for failed trials and assertions."""

    exit_code: ClassVar[int] = 1


class UsageError(JaxagentError):
    """A command or an argument that cannot be carried out as given."""

    exit_code = 2


class ConfigError(JaxagentError):
    """A configuration that is malformed or inconsistent."""

    exit_code = 2


class DataError(JaxagentError):
    """A dataset or a log that cannot be read."""

    exit_code = 3


class CheckpointError(JaxagentError):
    """No usable checkpoint, or one that does not fit the run."""

    exit_code = 4


class ResourceError(JaxagentError):
    """Out of disk or memory, or not allowed to write."""

    exit_code = 5


class LockError(JaxagentError):
    """Another process writes to the same run directory."""

    exit_code = 6
