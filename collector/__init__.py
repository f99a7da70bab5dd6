"""The collector: counts every report exactly once and publishes histograms with error bars."""
