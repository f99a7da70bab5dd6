"""A fleet without a collector: who holds what, how devices behave, and what they send.

datasets, population   counts of values, from a data set, a law or a file
behaviour              drop-out, churn, changes, late, duplicate and dishonest reports
manifests              a campaign for a data set
counts, memos          one round, and many, as counts alone: exact in law, without devices
answers, levels        the same for devices that answer once, and for nested reports
bulk_randomiser        both steps of randomised response for many devices at once
bulk_ways              every way of reporting for many devices at once
fleet, messages        every device and every report, a batch at a time; as MQTT messages
"""
