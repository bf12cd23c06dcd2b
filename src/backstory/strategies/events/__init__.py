"""An append-only log of events: appended, retracted, corrected; offsets without a gap."""
