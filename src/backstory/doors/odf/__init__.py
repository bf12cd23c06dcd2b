"""Open Data Fabric: manifests poll sources into append-only event logs."""
