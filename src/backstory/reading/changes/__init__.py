"""The feed of changes for tables of any layout, and its cursors (native.md, section 5)."""
