"""Connections that run a load's statements on a database."""
