"""What change feeds of other systems mean: their envelopes become events (native.md, V61 to V65)."""
