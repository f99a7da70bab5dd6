"""Rounds: from counts to published histograms, and what devices are told of a campaign.

sealing.py         when a round is due and drained, and making it final
results.py         counts to histograms with error bars; pure
publishing.py      results to the broker
result_json.py     a result as JSON, for dashboards
announce.py        a campaign's manifest and state, for devices
invitation.py      the manifest alone, published without the service
home_assistant.py  discovery for Home Assistant
retention.py       forgetting devices when a campaign's retention is over
"""
