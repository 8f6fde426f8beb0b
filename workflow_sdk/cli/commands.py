"""Every command, gathered."""

from __future__ import annotations

from workflow_sdk.cli import instances, schedules
from workflow_sdk.cli.app import App
from workflow_sdk.cli.app import group as cli
from workflow_sdk.cli.checking import check, dump
from workflow_sdk.cli.doctor import doctor
from workflow_sdk.cli.watch import watch
from workflow_sdk.cli.worker import worker

__all__ = ["App", "cli"]

for _command in (
    worker,
    instances.start,
    instances.list_,
    instances.show,
    instances.send,
    instances.result,
    instances.cancel,
    instances.recover,
    instances.restart_from,
    instances.prune,
    watch,
    schedules.schedules,
    schedules.pause_schedule,
    schedules.resume_schedule,
    schedules.delete_schedule,
    check,
    dump,
    doctor,
):
    cli.add_command(_command)
