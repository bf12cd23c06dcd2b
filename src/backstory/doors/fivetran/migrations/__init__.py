"""The operations of Migrate, each atomic and safe to repeat (section 6)."""
