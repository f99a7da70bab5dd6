"""The commands of `allomfree-collector`; all are registered here.

campaigns   plan, open, close
collecting  run, seal
reading     status, estimate, export
checks      health, doctor
broker      broker-config, enrol, revoke
page        page
text, plan_text, broker_text   typed facts as text for the terminal
options     the decorator that makes a command, and what several commands take

Exit codes: 0 done, 1 something at run time, 2 settings or manifest.
"""

from __future__ import annotations

import click

from collector.commands import broker, campaigns, checks, collecting, page, reading
from protocol_spec.programs.commands import STYLE, Program, version_option

COMMANDS = (
    campaigns.plan,
    campaigns.open,
    collecting.run,
    reading.status,
    reading.estimate,
    reading.export,
    page.page,
    collecting.seal,
    campaigns.close,
    checks.health,
    checks.doctor,
    broker.broker_config,
    broker.enrol,
    broker.revoke,
)


@click.group("allomfree-collector", cls=Program, context_settings=STYLE, commands=COMMANDS)
@version_option("allomfree-collector")
def main() -> None:
    """Collect statistics from fleets of devices under local differential privacy.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector open heat.toml
    allomfree-collector run
    allomfree-collector estimate
    """
