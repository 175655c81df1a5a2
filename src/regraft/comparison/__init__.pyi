from .arm import Arm, ArmData, ArmModel, Fitted
from .arms import ARM_KINDS, register_arm
from .fit_test import MEMBER_ARMS, compare_fitted
from .folder import ArmsFolder
from .plan import DEFAULT_FIT_MINUTES, Setup, load_comparison, read_request, relocated
from .procedure import compare, run_request
from .results import (
    OUTCOMES_NAME,
    REPORT_NAME,
    ArmInfo,
    ArmSummary,
    Comparison,
    CurvePoint,
    LabelWorth,
    Mistake,
    Opening,
    PairedTest,
    about,
)
from .test_set import LEDGER_NAME, find_seen, note_opening
from .verdict import nearest_rival

__all__ = [
    "ARM_KINDS",
    "DEFAULT_FIT_MINUTES",
    "LEDGER_NAME",
    "MEMBER_ARMS",
    "OUTCOMES_NAME",
    "REPORT_NAME",
    "Arm",
    "ArmData",
    "ArmInfo",
    "ArmModel",
    "ArmSummary",
    "ArmsFolder",
    "Comparison",
    "CurvePoint",
    "Fitted",
    "LabelWorth",
    "Mistake",
    "Opening",
    "PairedTest",
    "Setup",
    "about",
    "compare",
    "compare_fitted",
    "find_seen",
    "load_comparison",
    "nearest_rival",
    "note_opening",
    "read_request",
    "register_arm",
    "relocated",
    "run_request",
]
