"""The agent on a device: draws once, remembers for life, reports every round."""

from edge_client.client import EdgeClient, Invitation, Reported
from edge_client.errors import EdgeError
from edge_client.policy import Policy
from protocol_spec.programs.address import Credentials

__all__ = ["Credentials", "EdgeClient", "EdgeError", "Invitation", "Policy", "Reported"]
