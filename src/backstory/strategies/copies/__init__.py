"""Full copies into tables of layout `versions`."""
