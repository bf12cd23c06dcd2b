"""The metadata of tables, written anew for the folder that a warehouse stands in now."""
