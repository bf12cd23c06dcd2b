"""A sender that plays Fivetran's part: batch files from plain rows, and the RPCs that send them."""
