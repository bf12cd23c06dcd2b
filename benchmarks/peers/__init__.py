"""The same loads by backstory, by common tools, by hand and by the floor, in turn."""
