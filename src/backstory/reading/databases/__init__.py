"""The histories of models in databases: queries in any dialect, and answers without Spark (section 7.4)."""
