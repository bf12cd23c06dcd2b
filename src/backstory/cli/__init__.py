"""The command line. It only parses and prints."""
