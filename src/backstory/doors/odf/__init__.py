"""Open Data Fabric: manifests define datasets as append-only event logs with polling or push sources."""
