"""The command line, `workflow`: a door to a store, on public names only.

`commands.py` is the group of all commands, and how errors are told. The commands are in `instances.py`, `tasks.py`,
`schedules.py`, `watch.py`, `worker.py` (with `team.py`, for several processes), `checking.py` and `doctor.py`. They
share `options.py`, which reads the command line and opens the store, and `output.py`, which shows values. `listing.py`
prints lists, and `tree.py` an instance with its history.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA = {"click", "rich"}


def main() -> None:
    """Run the command line of this process, and exit."""
    try:
        from workflow_sdk.cli.commands import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        sys.exit("workflow: the command line needs the extra `cli`: pip install 'workflow-sdk[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)
    cli(prog_name="workflow")
