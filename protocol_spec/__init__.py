"""The contract between devices and collectors: manifest, wire, topics, and the mathematics.

This is the one door: what is in `__all__` is public, the rest may change. Estimation needs numpy
and therefore has a door of its own, `protocol_spec.estimation`; devices never open it.
"""

from protocol_spec.accounting import (
    Odds,
    Spending,
    largest_shift,
    lifetime_odds,
    report_odds,
    spending,
)
from protocol_spec.adaptive import choose_for
from protocol_spec.attributes import Attribute
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import (
    ADAPTIVE,
    LONGITUDINAL,
    ONE_TIME,
    Calibration,
    Choice,
    calibrate,
    calibrate_once,
    choose,
    largest_eps_1,
)
from protocol_spec.errors import (
    AllomfreeError,
    InfeasibleBudget,
    ManifestError,
    ParameterError,
    Problem,
    UnknownValue,
)
from protocol_spec.manifest import Manifest
from protocol_spec.multidimensional import smp_variance, smp_variance_once, spl_variance
from protocol_spec.outcomes import Outcome, Rejected
from protocol_spec.randomiser import Randomiser, Thresholds, as_drawn, thresholds
from protocol_spec.result import Result, decode_result
from protocol_spec.schedule import Schedule
from protocol_spec.topics import DEFAULT_NAMESPACE, Topics, parse_from_device
from protocol_spec.wire import (
    Presence,
    ReceiptPage,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    State,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_state,
    digest8,
    receipt_page,
    receipt_tag,
    report_fault,
)

__all__ = [
    "ADAPTIVE",
    "DEFAULT_NAMESPACE",
    "LONGITUDINAL",
    "ONE_TIME",
    "AllomfreeError",
    "Attribute",
    "BodyFormat",
    "Calibration",
    "Choice",
    "InfeasibleBudget",
    "Manifest",
    "ManifestError",
    "Odds",
    "Outcome",
    "ParameterError",
    "Presence",
    "Problem",
    "Randomiser",
    "ReceiptPage",
    "Rejected",
    "Report",
    "Request",
    "RequestKind",
    "Response",
    "ResponseStatus",
    "Result",
    "Schedule",
    "Spending",
    "State",
    "Thresholds",
    "Topics",
    "UnknownValue",
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
    "decode_state",
    "digest8",
    "largest_eps_1",
    "largest_shift",
    "lifetime_odds",
    "parse_from_device",
    "receipt_page",
    "receipt_tag",
    "report_fault",
    "report_odds",
    "smp_variance",
    "smp_variance_once",
    "spending",
    "spl_variance",
    "thresholds",
]
