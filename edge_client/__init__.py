"""The agent on a device: draws once, remembers for life, reports every round."""

from edge_client.broker_url import Credentials
from edge_client.client import EdgeClient, Invitation, Reported
from edge_client.errors import EdgeError
from edge_client.policy import Policy

__all__ = ["Credentials", "EdgeClient", "EdgeError", "Invitation", "Policy", "Reported"]
