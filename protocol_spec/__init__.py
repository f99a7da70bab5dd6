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
    chances  calibration  adaptive  randomiser  published               noise
    accounting  multidimensional                                        and its price
    precision  shown  errors                                            used by all of them

`protocol_spec.programs` is not part of the contract: it is what the agent and the collector, as
programs, have in common, and may need what the contract must not (a command line, MQTT).
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from protocol_spec.public import *  # noqa: F403 - its `__all__` says what is public
    from protocol_spec.public import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """What is public is loaded when it is asked for: `--version` need not wait for it."""
        public = importlib.import_module("protocol_spec.public")
        known = getattr(public, "__all__", ())  # not there yet while `public` itself is loaded
        if name == "__all__" or name in known:
            return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__getattr__("__all__")]
