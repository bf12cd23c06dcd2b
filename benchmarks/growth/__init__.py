"""The costs of a load as keys, changes, versions and files grow, and on a cluster."""
