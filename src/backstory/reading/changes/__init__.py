"""The feed of changes out of any layout, and the cursors of those who read it (native.md, section 5)."""
