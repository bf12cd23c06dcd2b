"""What plays the part of others: a sender of batches, a conformance kit for dialects."""
