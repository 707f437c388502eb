"""Who computes what: ranks, bytes per stage, bandwidth floors. Plain data, no GPU import."""
