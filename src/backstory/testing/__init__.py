"""Test tools: a sender of Fivetran batches, and a conformance kit for SQL dialects."""
