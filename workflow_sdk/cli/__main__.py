"""`python -m workflow_sdk.cli`, the same as `workflow`."""

from workflow_sdk.cli import main

main()
