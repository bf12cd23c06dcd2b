"""The laws of layouts: conditions on the rows of each layout, and the repair of rows that break them."""
