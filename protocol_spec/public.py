"""Everything behind the main door, brought together; `protocol_spec` hands it out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from protocol_spec.accounting import (
    Odds,
    Spending,
    largest_shift,
    lifetime_odds,
    report_odds,
    spending,
)
from protocol_spec.adaptive import ChooseFor, choose_for
from protocol_spec.attributes import NOT_KNOWN, Attribute
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import (
    ADAPTIVE,
    Calibration,
    Choice,
    calibrate,
    calibrate_once,
    choose,
    largest_eps_1,
)
from protocol_spec.chances import LONGITUDINAL, ONE_TIME, Method
from protocol_spec.errors import (
    AllomfreeError,
    InfeasibleBudget,
    ManifestError,
    ParameterError,
    Problem,
    UnknownValue,
)
from protocol_spec.fields import parse_duration
from protocol_spec.manifest import Manifest
from protocol_spec.outcomes import HELP as OUTCOME_HELP
from protocol_spec.outcomes import Outcome, Rejected
from protocol_spec.randomiser import (
    Entropy,
    Randomiser,
    Thresholds,
    as_drawn,
    drawn_chances,
    thresholds,
)
from protocol_spec.randomiser import below as random_below
from protocol_spec.receipts import (
    NameHash,
    hashed_for_page,
    hashed_for_tag,
    receipt_page,
    receipt_tag,
)
from protocol_spec.report import Report, decode_report, digest8, make_report, report_fault
from protocol_spec.schedule import Schedule
from protocol_spec.topics import DEFAULT_NAMESPACE, Topics, parse_from_device
from protocol_spec.ways import Reporting, Support, Way, WayRandomiser
from protocol_spec.wire import (
    Presence,
    ReceiptPage,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Signature,
    State,
    decode_receipts,
    decode_request,
    decode_response,
    decode_signature,
    decode_state,
    pack_receipts,
    signed_bytes,
)

if TYPE_CHECKING:
    from protocol_spec.multidimensional import smp_variance, smp_variance_once, spl_variance
    from protocol_spec.published import (
        PublishedThresholds,
        decode_thresholds,
        published_thresholds,
        thresholds_fault,
    )
    from protocol_spec.result import HalfWidths, Numbers, Result, ResultQuantile, decode_result
    from protocol_spec.result_checks import QUANTILES as RESULT_QUANTILES
    from protocol_spec.result_checks import SERIES as RESULT_SERIES

_OF_COLLECTORS: Final = {
    **dict.fromkeys(("smp_variance", "smp_variance_once", "spl_variance"), "multidimensional"),
    **dict.fromkeys(("PublishedThresholds", "decode_thresholds"), "published"),
    **dict.fromkeys(("published_thresholds", "thresholds_fault"), "published"),
    **dict.fromkeys(("HalfWidths", "Numbers", "Result", "ResultQuantile"), "result"),
    "decode_result": "result",
    "RESULT_QUANTILES": "result_checks",
    "RESULT_SERIES": "result_checks",
}
"""Names that no agent uses, and their modules: a small device has no memory to spare for them."""


def __getattr__(name: str) -> object:
    """Load what only collectors use when it is asked for."""
    if name not in _OF_COLLECTORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"protocol_spec.{_OF_COLLECTORS[name]}")
    return getattr(module, name.removeprefix("RESULT_"))


__all__ = [
    "ADAPTIVE",
    "DEFAULT_NAMESPACE",
    "LONGITUDINAL",
    "NOT_KNOWN",
    "ONE_TIME",
    "OUTCOME_HELP",
    "RESULT_QUANTILES",
    "RESULT_SERIES",
    "AllomfreeError",
    "Attribute",
    "BodyFormat",
    "Calibration",
    "Choice",
    "ChooseFor",
    "Entropy",
    "HalfWidths",
    "InfeasibleBudget",
    "Manifest",
    "ManifestError",
    "Method",
    "NameHash",
    "Numbers",
    "Odds",
    "Outcome",
    "ParameterError",
    "Presence",
    "Problem",
    "PublishedThresholds",
    "Randomiser",
    "ReceiptPage",
    "Rejected",
    "Report",
    "Reporting",
    "Request",
    "RequestKind",
    "Response",
    "ResponseStatus",
    "Result",
    "ResultQuantile",
    "Schedule",
    "Signature",
    "Spending",
    "State",
    "Support",
    "Thresholds",
    "Topics",
    "UnknownValue",
    "Way",
    "WayRandomiser",
    "as_drawn",
    "calibrate",
    "calibrate_once",
    "choose",
    "choose_for",
    "decode_receipts",
    "decode_report",
    "decode_request",
    "decode_response",
    "decode_result",
    "decode_signature",
    "decode_state",
    "decode_thresholds",
    "digest8",
    "drawn_chances",
    "hashed_for_page",
    "hashed_for_tag",
    "largest_eps_1",
    "largest_shift",
    "lifetime_odds",
    "make_report",
    "pack_receipts",
    "parse_duration",
    "parse_from_device",
    "published_thresholds",
    "random_below",
    "receipt_page",
    "receipt_tag",
    "report_fault",
    "report_odds",
    "signed_bytes",
    "smp_variance",
    "smp_variance_once",
    "spending",
    "spl_variance",
    "thresholds",
    "thresholds_fault",
]
