"""Peers that are quick and honest: they report the truth, so that estimates are known exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peer_environment import Peers

LONGITUDINAL = """
import numpy as np

def L_OSUE_Client(value, k, eps_perm, eps_1):
    assert (eps_perm, eps_1) == (2.0, 0.6)
    return np.eye(k)[value]

def L_OSUE_Aggregator_MI(reports, eps_perm, eps_1):
    assert (eps_perm, eps_1) == (2.0, 0.6)
    return sum(reports) / len(reports)
"""
GENERALISED = """
import numpy as np

def L_GRR_Client(value, k, eps_perm, eps_1):
    if k == 5:
        raise ValueError("five is too much")
    return value

def L_GRR_Aggregator_MI(reports, k, eps_perm, eps_1):
    return np.bincount(reports, minlength=k) / len(reports)
"""
HASHED = """
import numpy as np

def L_LH_Client(value, k, eps_perm, eps_1, optimal):
    assert isinstance(value, int) and isinstance(optimal, bool)
    return value, 0

def L_LH_Aggregator_MI(reports, k, eps_perm, eps_1, optimal):
    return np.bincount([value for value, _ in reports], minlength=k) / len(reports)
"""
SAMPLED = """
import numpy as np

def SMP_L_ADP_Client(user, sizes, d, eps_perm, eps_1):
    assert len(user) == len(sizes) == d
    attribute = np.random.randint(d)
    return attribute, user[attribute]

def SMP_L_ADP_Aggregator_MI(reports, sizes, d, eps_perm, eps_1):
    found = [[value for a, value in reports if a == attribute] for attribute in range(d)]
    shares = [np.bincount(f, minlength=k) / len(f) for f, k in zip(found, sizes)]
    return np.array(shares, dtype="object")
"""
ONE_TIME = """
import numpy as np

class UEClient:
    def __init__(self, epsilon, d, use_oue=False):
        assert (epsilon, use_oue) == (0.6, True)
        self.d = d

    def privatise(self, item):
        return np.eye(self.d)[item - 1]

class UEServer(UEClient):
    def aggregate_all(self, reports):
        self.total = sum(reports)

    def estimate_all(self, items, suppress_warnings):
        return np.array([self.total[item - 1] for item in items])
"""
COMPILER = """
def njit(function):
    return function
"""
MODULES = {
    "multi_freq_ldpy/long_freq_est/L_OSUE.py": LONGITUDINAL,
    "multi_freq_ldpy/long_freq_est/L_GRR.py": GENERALISED,
    "multi_freq_ldpy/long_freq_est/L_LH.py": HASHED,
    "multi_freq_ldpy/long_mdim_freq_est/L_SMP_Solution.py": SAMPLED,
    "pure_ldp/frequency_oracles.py": ONE_TIME,
    "numba.py": COMPILER,
}
DISTRIBUTIONS = {"multi_freq_ldpy": "0.0.1", "pure_ldp": "0.0.2", "numba": "0.0.3"}


def interpreter(directory: Path) -> Path:
    """A program that is this Python with the fakes installed."""
    for name, text in MODULES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, version in DISTRIBUTIONS.items():
        record = directory / f"{name}-{version}.dist-info" / "METADATA"
        record.parent.mkdir()
        record.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={directory} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


class Installed(Peers):
    """Stands for the driver where nothing is asked of it but its versions."""

    def __init__(self) -> None:
        """No process."""

    def versions(self) -> dict[str, str]:
        return {"multi-freq-ldpy": "0.0.1"}


@contextmanager
def installed(_python: Path | None) -> Iterator[Installed]:
    yield Installed()
