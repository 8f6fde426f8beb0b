"""The command line, `workflow`: a door to a store, on public names only.

`app.py` is the group of commands and how errors are told; `options.py` and `named.py` what is read from the command
line; `output.py` and `tree.py` how things are shown. The commands are in `instances.py`, `tasks.py`, `watch.py`,
`worker.py` (with `team.py`, for several processes), `checking.py` and `doctor.py`.
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
