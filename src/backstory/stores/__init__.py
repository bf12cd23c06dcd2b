"""Tables and their stores: the only rooms that write them."""
