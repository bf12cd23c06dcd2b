"""The doors through which deliveries come; they do not know each other."""
