"""The doors, through which deliveries arrive. They do not import each other."""
