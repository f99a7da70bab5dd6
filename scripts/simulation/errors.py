"""What a user of the simulator can fix; commands show the message alone and exit with 2."""

from __future__ import annotations

from protocol_spec import AllomfreeError


class SimulationError(AllomfreeError, ValueError):
    """A population, an option or a stored run that cannot be used. Nothing was simulated."""

    exit_code = 2
