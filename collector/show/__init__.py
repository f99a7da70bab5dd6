"""What people and programs read: nothing here writes, and nothing here knows the broker.

planning/     a campaign's precision before it begins, and which way of reporting suits it
estimates     from a result back to the estimate behind it
comparison    is A above B?
facts         typed facts, shared by the commands, JSON and the page
words         sentences about results, shared by the commands and the page
selection     which results somebody asked for
interest      which value over time a reader should see first
tables        results as rows: CSV, JSON, NDJSON; frames: as columns for pandas, polars and Arrow
table_files   tables as files: the name's ending chooses the format
charts        what a figure draws; svg, html and png are its files, figure_files chooses one
palette       the colours of every figure
terminal      histograms drawn in the terminal
metrics       Prometheus
truth         a simulation's true frequencies
"""
