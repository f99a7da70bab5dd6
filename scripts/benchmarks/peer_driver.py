"""Runs the peers' own code inside their environment: a line of JSON in, a line of JSON out.

It is started by path with the interpreter of an environment that holds the peers and not this
project, so it imports nothing of ours. Only the peers' work is timed, in CPU seconds of this
process; reading inputs and compiling are not. Each task runs on a few users first, so that what
numba compiles is compiled before the clock starts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any, Final

import numpy as np

WARM_UP: Final = 64
LONGITUDINAL: Final = {"L-GRR": "L_GRR", "L-OSUE": "L_OSUE", "LOLOHA": "L_LH"}

Reports = Sequence[Any]
Oracle = tuple[Callable[[Any], Reports], Callable[[Reports], Any]]  # randomise, aggregate


def multi_freq_ldpy(task: dict[str, Any]) -> Oracle:
    """Its longitudinal protocols, one call a user: its clients take one value."""
    protocol, k, budget = task["protocol"], task["k"], (task["eps_inf"], task["eps_1"])
    name = LONGITUDINAL[protocol]
    module = import_module(f"multi_freq_ldpy.long_freq_est.{name}")
    client, aggregator = (getattr(module, f"{name}_{half}") for half in ("Client", "Aggregator_MI"))
    if protocol == "LOLOHA":  # with two cells, or with as many as it considers best
        best = bool(task["best_cells"])
        return (
            lambda v: [client(int(value), k, *budget, best) for value in v],
            lambda r: aggregator(r, k, *budget, best),
        )
    # A list of bits says by itself how many values it has.
    words = (k, *budget) if protocol == "L-GRR" else budget
    if task.get("compiled"):
        loop = compiled_loop(client)
        return lambda v: loop(v, k, *budget), lambda r: aggregator(r, *words)
    return lambda v: [client(value, k, *budget) for value in v], lambda r: aggregator(r, *words)


def compiled_loop(client: Any) -> Any:
    """The loop over users compiled too: the fastest call of its compiled (unary) clients."""

    def loop(values: Any, k: int, eps_inf: float, eps_1: float) -> Any:
        reports = np.empty((len(values), k))
        for i in range(len(values)):
            reports[i] = client(values[i], k, eps_inf, eps_1)
        return reports

    return import_module("numba").njit(loop)


def pure_ldp(task: dict[str, Any]) -> Oracle:
    """Its one-time protocols at eps_1: it has no longitudinal ones."""
    k, epsilon = task["k"], task["eps_1"]
    oracles = import_module("pure_ldp.frequency_oracles")
    prefix, extra = {"GRR": ("DE", {}), "OUE": ("UE", {"use_oue": True})}[task["protocol"]]
    client = getattr(oracles, f"{prefix}Client")(epsilon, k, **extra)

    def aggregate(reports: Reports) -> Any:
        server = getattr(oracles, f"{prefix}Server")(epsilon, k, **extra)
        server.aggregate_all(reports)
        everything = range(1, k + 1)  # it counts values from 1
        return server.estimate_all(everything, suppress_warnings=True) / len(reports)

    return lambda v: [client.privatise(value + 1) for value in v], aggregate


def campaign(task: dict[str, Any]) -> Oracle:
    """multi-freq-ldpy's ALLOMFREE over several attributes, each user reporting one of them."""
    sizes, budget = task["sizes"], (task["eps_inf"], task["eps_1"])
    module = import_module("multi_freq_ldpy.long_mdim_freq_est.L_SMP_Solution")
    client, aggregator = module.SMP_L_ADP_Client, module.SMP_L_ADP_Aggregator_MI
    return (
        lambda users: [client(user, sizes, len(sizes), *budget) for user in users],
        lambda reports: aggregator(reports, sizes, len(sizes), *budget),
    )


ORACLES: Final[dict[str, Callable[[dict[str, Any]], Oracle]]] = {
    "multi-freq-ldpy": multi_freq_ldpy,
    "pure-ldp": pure_ldp,
    "campaign": campaign,
}


def _seed_numpy(number: int) -> None:
    np.random.seed(number)


def run(task: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds, and the frequencies that came out."""
    values = np.load(task["values"])
    randomise, aggregate = ORACLES[task["oracle"]](task)
    random.seed(task["seed"])
    np.random.seed(task["seed"])
    if "numba" in sys.modules:  # its own generator is seeded only from compiled code
        import_module("numba").njit(_seed_numpy)(task["seed"])
    aggregate(randomise(values[:WARM_UP]))
    begin = time.process_time()
    frequencies = aggregate(randomise(values))
    seconds = time.process_time() - begin
    lists = [np.asarray(f, dtype=float).tolist() for f in frequencies]
    return {"seconds": seconds, "frequencies": lists}


def answer(line: str) -> dict[str, Any]:
    """The answer to one task; a failure is an answer too."""
    try:
        task = json.loads(line)
        if "names" in task:
            return {name: metadata.version(name) for name in task["names"]}
        return run(task)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is an answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps(answer(asked)), flush=True)
