"""Test tools: a sender of batches and a conformance kit for SQL dialects."""
