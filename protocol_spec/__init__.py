"""The contract between devices and collectors: manifest, wire, topics, and the mathematics.

What a device or a collector in another language has to do the same way, and nothing else. This is
the main door: what is in `__all__` is public. Four more modules are public as they are:

    estimation   from counts to frequencies; needs numpy, so devices never open it
    limits       every size, count and length that the protocol bounds
    reporting    the mathematics of the ways of reporting besides the paper's, to plan with
    topics       MQTT topics and filters, built and parsed

Behind the doors:

    manifest  manifest_reader  manifest_checks  manifest_fields         what is asked
    fields  attributes  schedule  names                                 parts of it
    ways                                                                how it is answered
    report  wire  receipts  result  result_checks                       messages
    decoding  canonical  body  outcomes                                 as bytes
    chances  calibration  adaptive  randomiser                          noise
    accounting  multidimensional                                        and its price
    precision  errors                                                   used by all of them

`protocol_spec.programs` is not part of the contract: it is what the agent and the collector, as
programs, have in common, and may need what the contract must not (a command line, MQTT).
"""

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
from protocol_spec.multidimensional import smp_variance, smp_variance_once, spl_variance
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
from protocol_spec.receipts import receipt_page, receipt_tag
from protocol_spec.report import Report, decode_report, digest8, make_report, report_fault
from protocol_spec.result import HalfWidths, Numbers, Result, ResultQuantile, decode_result
from protocol_spec.result_checks import QUANTILES as RESULT_QUANTILES
from protocol_spec.result_checks import SERIES as RESULT_SERIES
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
    State,
    decode_receipts,
    decode_request,
    decode_response,
    decode_state,
    pack_receipts,
)

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
    "Numbers",
    "Odds",
    "Outcome",
    "ParameterError",
    "Presence",
    "Problem",
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
    "decode_state",
    "digest8",
    "drawn_chances",
    "largest_eps_1",
    "largest_shift",
    "lifetime_odds",
    "make_report",
    "pack_receipts",
    "parse_duration",
    "parse_from_device",
    "random_below",
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
