"""Rounds: from counts to published histograms, and what devices are told of a campaign.

draining.py        whether the broker holds anything more that was sent in time
sealing.py         when a round is due and drained, and making it final
releasing.py       what of a sealed round is released, so that no difference is about too few
results.py         counts to histograms with error bars; pure
estimates.py       which estimate is made, for each way of reporting; pure
publishing.py      results to the broker
result_json.py     a result as JSON, for dashboards
announce.py        a campaign's manifest and state, for devices
invitation.py      the manifest alone, published without the service
home_assistant.py  discovery for Home Assistant
retention.py       deleting what is kept only so long: unreleased counts, devices
"""
