"""What a load costs as keys, changes, versions and files grow; and on a cluster."""
