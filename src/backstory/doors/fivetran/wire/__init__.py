"""The messages and the service of Fivetran's destination contract, generated from .proto files."""
