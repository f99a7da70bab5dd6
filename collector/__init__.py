"""The collector: counts every report exactly once and publishes histograms with error bars.

Its rooms, each importing only from those above it:

    errors         what can go wrong, and the exit code it ends with
    settings       one table for flags, variables and the configuration file
    records        what the rooms hand to each other: campaigns, reports, counts
    timing         the clocks, and how long the service waits for what
    health         the service's status and heartbeat, and reading them
    device_key     from a device's name to a keyed number
    operator_key   the key that signs manifests
    store/         what the collector knows: the port, and one room per engine
    data_dir       the private directory, its lock, and opening the store
    mqtt/          the connection to a broker: the port, paho, and a broker in memory
    ingest/        from a message to a counted report with a receipt
    rounds/        sealing, results, publishing, announcing
    service        the loop: connect, read, count, seal, publish
    planning       a campaign's precision before it begins
    results/       facts, rows and comparisons; the analyst's table
    charts         every figure; metrics: Prometheus
    child_process  supervision of the programs a collector starts
    processes      other processes, as the system shows them
    brokers/       configuring, embedding and testing brokers
    backups/       copies of what cannot be made again, and restoring them
    web/           the page, in a process of its own
    doctor         one check after the other, with the next step
    commands/      the command line
"""
