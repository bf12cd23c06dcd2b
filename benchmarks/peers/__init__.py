"""The same loads by backstory, by the tools that people use, by hand, and the floor; each in turn."""
