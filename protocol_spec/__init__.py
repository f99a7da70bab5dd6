"""The contract between devices and collectors: manifest, wire, topics, and the mathematics.

What a device or a collector in another language must do identically, and nothing else. `__all__` is
public; a name is loaded when it is asked for, because a small device has no memory to spare for
what only collectors use. Four modules are public as they are:

    estimation   from counts to frequencies; needs numpy, so devices never open it
    limits       every size, count and length that the protocol bounds
    mechanisms   how a question is answered, and what that costs
    topics       MQTT topics and filters, built and parsed

`protocol_spec.programs` is not part of the contract: it is what the agent and the collector, as
programs, have in common, and may need what the contract must not (a command line, MQTT).
"""

import importlib
from typing import TYPE_CHECKING, Final

_PUBLIC: Final = {
    "accounting": "Odds Spending largest_shift lifetime_odds report_odds spending",
    "attributes": "NOT_KNOWN OTHERS Attribute Groups",
    "calibration": "ADAPTIVE Calibration ChooseFor calibrate calibrate_once candidates "
    "choose largest_eps_1",
    "encoding": "BodyFormat",
    "errors": "AllomfreeError InfeasibleBudget ManifestError ParameterError Problem UnknownValue",
    "explanation": "Explanation Often Phrase Shift",
    "fields": "parse_duration",
    "manifest": "Manifest",
    "mechanisms": "MECHANISMS Mechanism Reporting Support",
    "messages": "NameHash Presence ReceiptPage Report Request RequestKind Response ResponseStatus "
    "Signature State decode_receipts decode_report decode_request decode_response "
    "decode_signature decode_state digest8 hashed_for_page hashed_for_tag make_report "
    "pack_receipts receipt_page receipt_tag report_fault signed_bytes",
    "outcomes": "OUTCOME_HELP Outcome Rejected",
    "probabilities": "LONGITUDINAL ONE_TIME Method",
    "published": "PublishedThresholds decode_thresholds published_thresholds thresholds_fault",
    "randomiser": "DrawnStep Entropy Randomiser as_drawn drawn_probabilities random_below "
    "thresholds",
    "results": "RESULT_QUANTILES RESULT_SERIES HalfWidths Numbers Result ResultQuantile "
    "decode_result",
    "schedule": "Schedule",
    "topics": "DEFAULT_NAMESPACE Topics parse_from_device",
    "trial": "TRIAL_MARK is_trial made_up_frequencies made_up_value",
}

if TYPE_CHECKING:
    from protocol_spec.accounting import *
    from protocol_spec.attributes import *
    from protocol_spec.calibration import *
    from protocol_spec.encoding import *
    from protocol_spec.errors import *
    from protocol_spec.explanation import *
    from protocol_spec.fields import *
    from protocol_spec.manifest import *
    from protocol_spec.mechanisms import *
    from protocol_spec.messages import *
    from protocol_spec.outcomes import *
    from protocol_spec.probabilities import *
    from protocol_spec.published import *
    from protocol_spec.randomiser import *
    from protocol_spec.results import *
    from protocol_spec.schedule import *
    from protocol_spec.topics import *
    from protocol_spec.trial import *
else:
    _MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
    __all__ = sorted(_MODULES)  # noqa: PLE0605

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
