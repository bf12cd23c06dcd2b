"""HistoryBench: days of customers and accounts, derived from TPC-DI and not comparable with it."""
