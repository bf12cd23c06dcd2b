"""Open Data Fabric: manifests define datasets, append-only event logs with polling or push sources."""
