"""Expressions over plain data: guards, admissions and arguments of graphs.

They are written with `E` or as text in Python's syntax, read when a graph is built, and evaluated by an interpreter of
our own: nothing is changed, no attribute of an object is read, nothing is called but the functions that are listed or
registered, and every evaluation ends in its budget.
"""

from __future__ import annotations

from workflow_sdk.graphs.expressions.data import SIZE_MAX as SIZE_MAX
from workflow_sdk.graphs.expressions.data import STEPS_MAX as STEPS_MAX
from workflow_sdk.graphs.expressions.expression import Expression as Expression
from workflow_sdk.graphs.expressions.expression import parse as parse
from workflow_sdk.graphs.expressions.faults import ExpressionError as ExpressionError
from workflow_sdk.graphs.expressions.functions import REGISTERED as REGISTERED
from workflow_sdk.graphs.expressions.functions import function as function
from workflow_sdk.graphs.expressions.functions import function_name as function_name
from workflow_sdk.graphs.expressions.native import Guard as Guard
from workflow_sdk.graphs.expressions.native import Native as Native
from workflow_sdk.graphs.expressions.native import expression_of as expression_of
from workflow_sdk.graphs.expressions.native import place_of as place_of
from workflow_sdk.graphs.expressions.templates import Template as Template
from workflow_sdk.graphs.expressions.templates import template_of as template_of
from workflow_sdk.graphs.expressions.terms import E as E
from workflow_sdk.graphs.expressions.terms import fn as fn
from workflow_sdk.graphs.expressions.tree import ROOTS as ROOTS
from workflow_sdk.graphs.expressions.tree import TEXT_MAX as TEXT_MAX
