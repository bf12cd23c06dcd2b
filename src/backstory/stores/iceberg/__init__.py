"""The store: the only room that talks to Iceberg and the only one that writes."""
